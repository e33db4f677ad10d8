// Held-out problems of a task answered by a model of this process. Not thread-safe.
#ifndef MILLRACE_CLI_EVALUATION_RUN_H_
#define MILLRACE_CLI_EVALUATION_RUN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "environments/task.h"
#include "evaluation/report.h"

namespace millrace {

struct EvaluationSettings {
  std::string model;  // run or model folder
  int64_t problems = 200;
  int64_t samples = 8;  // per problem at the temperature; 0 = none
  bool greedy = true;   // one greedy sample per problem
  double temperature = 1;
  int64_t max_new_tokens = 256;
  uint64_t seed = 0;
  std::string device = "cpu";
  int threads = 0;
};

// One answer, for people to look at.
struct EvaluatedSample {
  uint64_t problem = 0;
  std::string source;
  bool greedy = false;
  uint32_t sample = 0;
  std::string prompt;  // special tokens spelled out
  std::string completion;
  std::string reference;
  Verdict verdict;
  int64_t tokens = 0;
  bool truncated = false;
};

struct EvaluationCallbacks {
  std::function<void(const EvaluatedSample&)> on_sample;  // may be empty
  // Samples; first with 0, when the model is loaded. May be empty.
  std::function<void(int64_t done, int64_t total)> on_progress;
};

struct EvaluationOutcome {
  std::string model_dir;  // the Hugging Face folder
  std::vector<ProblemOutcome> problems;
  double load_seconds = 0;
  double seconds = 0;  // of sampling and judging
};

// Problems 0 .. min(problems, held-out ones of the task) - 1.
absl::StatusOr<EvaluationOutcome> EvaluateModel(const Task& task,
                                                const EvaluationSettings& settings,
                                                const EvaluationCallbacks& callbacks);

}  // namespace millrace

#endif  // MILLRACE_CLI_EVALUATION_RUN_H_
