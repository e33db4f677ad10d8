// What an evaluation came to, and what it says of training on the task. Pure functions,
// thread-safe.
#ifndef MILLRACE_EVALUATION_REPORT_H_
#define MILLRACE_EVALUATION_REPORT_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "evaluation/interval.h"

namespace millrace {

// What became of one problem.
struct ProblemOutcome {
  std::string source;  // part of a mixture or file of a dataset; may be empty
  // Samples at the temperature.
  int64_t samples = 0;
  int64_t correct = 0;
  int64_t tokens = 0;
  int64_t truncated = 0;  // ended at the length limit
  double lowest_reward = 0, highest_reward = 0;
  std::optional<bool> greedy;
  std::optional<bool> baseline;
};

struct PassAt {
  int64_t k = 1;
  double value = 0;   // mean over problems of the unbiased estimate (PassAtK)
  Interval interval;  // Wilson's with as many trials as problems: at least as wide as it should be
};

// What the figures mean for training with groups of as many samples.
struct Advice {
  std::string verdict;  // unknown, cut_off, too_hard, weak, trainable, saturated
  std::string text;     // a sentence or two for a person
};

struct EvaluationReport {
  int64_t problems = 0;
  std::optional<Proportion> sampled;
  std::optional<Proportion> greedy;
  std::optional<Proportion> baseline;
  std::vector<PassAt> pass_at;  // k = 1, 2, 4, ... and the number of samples a problem
  // Of the problems with two samples or more: those whose samples' rewards differ, which are what a
  // filter of degenerate groups keeps; of the others, those all wrong and those all right.
  int64_t groups = 0;
  double mixed = 0;
  Interval mixed_interval;  // Wilson's, 95 %
  double all_wrong = 0;
  double all_right = 0;
  double tokens_mean = 0;                               // a sample
  double truncated_fraction = 0;                        // of samples
  std::map<std::string, Proportion> sampled_by_source;  // when there are two sources or more
  std::map<std::string, Proportion> greedy_by_source;
  Advice advice;
};

EvaluationReport SummariseEvaluation(absl::Span<const ProblemOutcome> outcomes);

// By these rules, the first that holds; pass@k is that of the largest k. "Few mixed": the interval
// of the mixed groups lies below 20 %, so that a step samples more than five groups for each that
// it trains on. "Mostly": nine of ten of the groups that are not mixed, or more.
//   cut_off    pass@k <= 2 % and half of the samples or more end at the length limit
//   saturated  greedy >= 98 % (unless pass@k <= 2 %), or samples >= 98 %, or few mixed and mostly
//              all right
//   unknown    fewer than two samples a problem
//   too_hard   few mixed and mostly all wrong
//   weak       few mixed
//   trainable  the interval lies above 20 %
//   unknown    otherwise: more problems would tell
Advice AdviceFor(const EvaluationReport& report);

// Keys as in docs/evaluation.md.
nlohmann::ordered_json EvaluationToJson(const EvaluationReport& report);

}  // namespace millrace

#endif  // MILLRACE_EVALUATION_REPORT_H_
