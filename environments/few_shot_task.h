// What the tasks have in common that show a few worked examples and then ask for one more: the
// turns of the prompt, the split, and the reward. Thread-safe (const).
#ifndef MILLRACE_ENVIRONMENTS_FEW_SHOT_TASK_H_
#define MILLRACE_ENVIRONMENTS_FEW_SHOT_TASK_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "environments/problem_random.h"
#include "environments/task.h"

namespace millrace {

// How much of an answer is right, for partial credit.
struct AnswerMatch {
  bool correct = false;
  bool format = false;  // it has the form that is asked for
  double fields = 0;    // right parts of it over all parts, in [0, 1]
};

// With partial credit the components are "format" (0.1), "fields" (0.3 times the part of the fields
// that is right) and "exact" (0.6), which add up to 1 for a right answer; without, "exact" (1).
Verdict MakeVerdict(const AnswerMatch& match, bool partial_credit);

// Match of one JSON object with the object `reference`.
AnswerMatch MatchJsonObject(const std::string& reference, absl::string_view completion);

class FewShotTask : public Task {
 public:
  struct Shot {
    std::string line;    // what is asked; the split is by the hash of this
    std::string answer;  // the right completion
  };
  struct Options {
    std::string name;
    std::string prompt;       // stands before every line
    std::vector<Shot> shots;  // none of them held out
    uint64_t seed = 1;
    bool partial_credit = true;
  };
  explicit FewShotTask(Options options) : options_(std::move(options)) {}

  std::string name() const override { return options_.name; }
  Problem Make(Split split, uint64_t id) const override;
  Verdict Verify(const Problem& problem, absl::string_view completion) const override;

 protected:
  virtual Shot Draw(ProblemRandom* random) const = 0;
  // Default: MatchJsonObject.
  virtual AnswerMatch Match(const std::string& reference, absl::string_view completion) const;
  // The line that a problem asks about.
  std::string LineOf(const Problem& problem) const;

 private:
  const Options options_;
};

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_FEW_SHOT_TASK_H_
