// Held-out evaluation on the rollout servers: problems go out in shards over Rollout.Evaluate to
// the members of weight sync; a shard that fails goes to another member. Thread-safe.
#ifndef MILLRACE_LEARNER_EVALUATION_CLIENT_H_
#define MILLRACE_LEARNER_EVALUATION_CLIENT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weight_sync/publisher.h"

namespace millrace {

struct EvalRequest {
  std::string kind;      // before, after, periodic
  std::string mode;      // sampled, greedy
  int64_t step = 0;      // learner step it belongs to
  int64_t version = -1;  // weights that must answer; -1 = whatever is active
  int64_t problems = 0;  // held-out problems 0..problems-1
  int64_t samples = 1;   // per problem
  double temperature = 1;
  int64_t top_k = 0;
  double top_p = 1;
  int64_t max_new_tokens = 0;
  uint64_t seed = 0;
  absl::Duration timeout = absl::Minutes(30);  // of the whole evaluation
  int64_t shard_problems = 16;
  int64_t max_attempts = 6;         // of one shard
  std::function<bool()> cancelled;  // asked several times a second; may be empty
};

struct EvalOutcome {
  EvalRequest request;
  int64_t version = -1;  // newest that answered
  int64_t samples = 0;
  int64_t correct = 0;
  double accuracy = 0;
  double low = 0, high = 1;  // 95 % interval
  bool has_baseline = false;
  int64_t baseline_correct = 0;  // of `problems`
  double baseline_accuracy = 0;
  double tokens_mean = 0;
  int64_t truncated = 0;
  double seconds = 0;
};

class Evaluator {
 public:
  struct Options {
    std::string task;
    std::function<std::vector<MemberInfo>()> members;
    absl::Duration shard_timeout = absl::Minutes(5);   // of one call
    absl::Duration activate_wait = absl::Seconds(60);  // for the version to become active
    absl::Duration retry_pause = absl::Seconds(1);     // of a member after a failure
    // After every shard: answered and all problems. Called with no lock held. May be empty.
    std::function<void(const EvalRequest& request, int64_t done, int64_t total)> progress;
  };
  explicit Evaluator(Options options) : options_(std::move(options)) {}

  // DEADLINE_EXCEEDED and UNAVAILABLE say how many samples came, who the members are and the last
  // error; CANCELLED when request.cancelled() says so.
  absl::StatusOr<EvalOutcome> Run(const EvalRequest& request);

 private:
  const Options options_;
};

}  // namespace millrace

#endif  // MILLRACE_LEARNER_EVALUATION_CLIENT_H_
