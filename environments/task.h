// A task: problems with a verifier. Problems are made from (split, id), so a lease need only carry
// the id. Thread-safe (const).
#ifndef MILLRACE_ENVIRONMENTS_TASK_H_
#define MILLRACE_ENVIRONMENTS_TASK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/config.h"
#include "common/trajectory.h"

namespace millrace {

struct ChatMessage {
  std::string role;  // system, user, assistant
  std::string content;
};

struct Problem {
  uint64_t id = 0;
  std::vector<ChatMessage> messages;  // through the chat template, with the generation prompt after
                                      // them; or, when empty:
  std::string text;                   // the prompt as plain text, as it is
  std::string reference;              // what the verifier compares with
  std::string demonstration;  // a completion that is right, for supervised warm-up; empty = the
                              // task has none
  std::string source;  // which part of a mixture or file of a dataset it is from, for reports
};

// A verdict on one completion. `reward` is the sum of the components.
struct Verdict {
  double reward = 0;
  bool correct = false;  // strict check, what evaluation counts
  std::vector<RewardComponent> components;
};

enum class Split { kTrain, kEval };

class Task {
 public:
  virtual ~Task() = default;
  virtual std::string name() const = 0;
  // Problem `id` of a split; the same for ever. No problem of kEval (as prompt text and reference)
  // is in kTrain.
  virtual Problem Make(Split split, uint64_t id) const = 0;
  virtual Verdict Verify(const Problem& problem, absl::string_view completion) const = 0;
  // What plain code without a model answers (a regular expression, say); nullopt when the task has
  // no such baseline.
  virtual std::optional<std::string> Baseline(const Problem& problem) const { return std::nullopt; }
  // Strings that end a completion (not stripped), besides the model's end-of-turn tokens.
  virtual std::vector<std::string> StopStrings() const { return {}; }
  // Problems there are in a split before they repeat; 0 = the task makes them without end.
  virtual uint64_t Size(Split split) const { return 0; }
  // Changes with the problems of a task that reads files; empty = they follow from the config.
  virtual std::string Digest() const { return ""; }
  // What a user should know of the problems (duplicates that were left out, ...), a line each.
  virtual std::vector<std::string> Notes() const { return {}; }
};

struct TaskOptions {
  std::string name;
  uint64_t seed = 1;
  int64_t max_number = 99;         // sums
  bool partial_credit = true;      // tasks of environments/few_shot_task.h
  std::vector<std::string> parts;  // mixture: "task" or "task:weight" each; empty = the four
  // of environments/few_shot_task.h
  // dataset; gsm8k and .toml files: on top of theirs. Of a mixture it is for the part "dataset"
  // alone, the others are as their files say.
  RunConfig::Data data;
};
// NOT_FOUND lists the tasks there are. A name that ends in .toml is a dataset (dataset_task.h).
// INVALID_ARGUMENT names data.files, or a field of data.overridden, that the task would not read.
absl::StatusOr<std::unique_ptr<Task>> MakeTask(const TaskOptions& options);
// Whether options.data has a part in the task.
bool ReadsData(const TaskOptions& options);
std::vector<std::string> TaskNames();

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_TASK_H_
