// Supervised warm-up on a task's demonstrations (the completion's tokens only), until held-out
// greedy accuracy is in a window. Not thread-safe.
#ifndef MILLRACE_LEARNER_SFT_H_
#define MILLRACE_LEARNER_SFT_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config.h"
#include "learner/sft_trainer.h"
#include "model/tokenizer.h"
#include "model/transformer.h"

namespace millrace {

class Task;

struct GreedyResult {
  int64_t problems = 0;
  int64_t correct = 0;
  double accuracy() const {
    return problems == 0 ? 0 : static_cast<double>(correct) / static_cast<double>(problems);
  }
};
struct GreedyOptions {
  int64_t problems = 0;  // held-out problems 0..problems-1
  int64_t max_new_tokens = 0;
  std::function<bool()> stopping;  // asked before every decode step; may be empty
};
// Greedy accuracy on held-out problems, decoded in this process. CANCELLED when stopping() says so.
absl::StatusOr<GreedyResult> GreedyAccuracy(const Transformer& model, const Tokenizer& tokenizer,
                                            const Task& task, const GreedyOptions& options);

struct WarmUpCallbacks {
  std::function<bool()> stopping;  // asked before every step, of training and of decoding
  std::function<void(int64_t step, const SftStepReport& report)> on_step;
  std::function<void(int64_t step, const GreedyResult& result)> on_check;
};
enum class WarmUpEnd {
  kInWindow,    // greedy accuracy is in [stop_low, stop_high]
  kOvershot,    // it jumped over the window between two steps
  kOutOfSteps,  // sft.steps were done below the window
  kStopped,     // stopping() said so
};
struct WarmUpResult {
  int64_t steps = 0;
  double accuracy = 0;  // of the last check
  WarmUpEnd end = WarmUpEnd::kOutOfSteps;
  std::string message;  // for people: what happened and what to change
};
// Trains `model` by the config's [sft] until a check (every sft.eval_every steps, on the problems
// of the evaluations) is in the window. When a check is above it, the weights of the check before
// are taken again and every step is checked. FAILED_PRECONDITION when the task has no
// demonstrations.
absl::StatusOr<WarmUpResult> WarmUp(const RunConfig& config, const Tokenizer& tokenizer,
                                    Transformer* model, const WarmUpCallbacks& callbacks);

}  // namespace millrace

#endif  // MILLRACE_LEARNER_SFT_H_
