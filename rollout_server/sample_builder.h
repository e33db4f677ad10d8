// From a problem to a prompt, and from a sample to a trajectory. Plain functions: no lock, clock or
// thread; what a task throws becomes a Status.
#ifndef MILLRACE_ROLLOUT_SERVER_SAMPLE_BUILDER_H_
#define MILLRACE_ROLLOUT_SERVER_SAMPLE_BUILDER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "buffer/buffer_client.h"
#include "common/trajectory.h"
#include "environments/task.h"
#include "model/tokenizer.h"
#include "rollout_server/engine.h"

namespace millrace {

struct PreparedProblem {
  Problem problem;
  std::vector<int32_t> prompt;  // token ids
  std::string prompt_text;      // for people, special tokens spelled out
};

// Makes and encodes problem `id`. An exception of the task or an encoding error is INTERNAL or the
// tokenizer's own code, naming task, split and id.
absl::StatusOr<PreparedProblem> PrepareProblem(const Task& task, const Tokenizer& tokenizer,
                                               Split split, uint64_t id);
// RESOURCE_EXHAUSTED naming both numbers when the prompt is longer than `max_prompt_tokens`.
absl::Status CheckPromptLength(const PreparedProblem& prepared, int64_t max_prompt_tokens);

// The verdict; an exception of the verifier or a reward that is not finite is INTERNAL.
absl::StatusOr<Verdict> VerifyGuarded(const Task& task, const Problem& problem,
                                      const std::string& completion);

// A check for EngineRequest::stop: true once the newest token completed one of `stop_strings`.
// Empty when there are none. `tokenizer` must outlive it.
std::function<bool(absl::Span<const int32_t>)> MakeStopCheck(const Tokenizer* tokenizer,
                                                             std::vector<std::string> stop_strings);

// Where a trajectory comes from.
struct TrajectoryOrigin {
  std::string run;
  std::string server;
  float temperature = 1;
  GroupLease lease;
};

// What became of one sample.
struct SampleOutcome {
  GeneratedSample sample;
  std::string completion_text;
  absl::StatusOr<Verdict> verdict;  // of the text; not looked at when the sample was cancelled
  int64_t ended_unix_us = 0;
};

// The trajectory of one sample: the prompt's tokens (mask 0), then the sampled ones (mask 1), the
// version spans shifted behind the prompt. A verdict that is an error makes it FAILED with that
// message. A cancelled sample is ABORTED and has no verdict.
Trajectory BuildTrajectory(const TrajectoryOrigin& origin, const PreparedProblem& prepared,
                           const SampleOutcome& outcome);

// Member `index` of a lease that could not be sampled at all: FAILED, with the first tokens of
// `prompt` (one padding token when it is empty, since every trajectory has a token).
Trajectory FailedTrajectory(const TrajectoryOrigin& origin, uint32_t index,
                            absl::Span<const int32_t> prompt, const absl::Status& why);

// What may take the place of `trajectory` when the buffer will not have it: the same member,
// FAILED, with its first prompt tokens and nothing sampled.
Trajectory WithoutVerdict(const Trajectory& trajectory);

}  // namespace millrace

#endif  // MILLRACE_ROLLOUT_SERVER_SAMPLE_BUILDER_H_
