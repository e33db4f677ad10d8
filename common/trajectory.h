// The unit of training data as plain structs; proto/trajectory.proto is the same on the wire
// (conversion: buffer/trajectory_proto.h). Values, no thread safety of their own.
#ifndef MILLRACE_COMMON_TRAJECTORY_H_
#define MILLRACE_COMMON_TRAJECTORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace millrace {

// Rewards closer than this are equal, in reward units.
inline constexpr double kRewardTolerance = 1e-6;

// Names one attempt at one member of one group; pushing the same key again changes nothing.
struct TrajectoryKey {
  std::string run;
  uint64_t group_id = 0;
  uint32_t index = 0;    // 0 .. group_size-1
  uint32_t attempt = 0;  // +1 for each time the group was leased again

  friend bool operator==(const TrajectoryKey&, const TrajectoryKey&) = default;
};

// Tokens [begin, end) were sampled under weight version `version`.
struct VersionSpan {
  int64_t version = 0;
  uint32_t begin = 0;
  uint32_t end = 0;

  friend bool operator==(const VersionSpan&, const VersionSpan&) = default;
};

struct RewardComponent {
  std::string name;
  double value = 0;

  friend bool operator==(const RewardComponent&, const RewardComponent&) = default;
};

enum class TrajectoryStatus {
  kCompleted = 1,  // ended by itself
  kTruncated = 2,  // length limit; has a verdict
  kAborted = 3,    // stopped by us; no verdict
  kFailed = 4,     // infrastructure failed; no verdict, which is not reward 0
};

// One episode. The per-token vectors all have length T.
struct Trajectory {
  TrajectoryKey key;
  std::string task;
  uint64_t problem_id = 0;
  std::vector<int32_t> token_ids;  // (T) everything the policy saw or sampled, in order
  std::vector<uint8_t> loss_mask;  // (T) 1 = sampled by the policy
  std::vector<float> logprobs;     // (T) sampler's natural-log probability; 0 where the mask is 0
  std::vector<VersionSpan> versions;  // exactly the masked-in tokens, in order
  double reward = 0;
  std::vector<RewardComponent> reward_components;
  TrajectoryStatus status = TrajectoryStatus::kCompleted;
  std::string status_detail;
  uint64_t sampling_seed = 0;
  float temperature = 1;
  std::string server;
  int64_t created_unix_us = 0;
  double generate_seconds = 0;
  std::string prompt_text;
  std::string completion_text;

  friend bool operator==(const Trajectory&, const Trajectory&) = default;
};

// OK when lengths agree, the mask is 0/1, spans cover exactly the masked-in tokens in order,
// logprobs are finite and <= 0 (tolerance 1e-4) where the mask is 1, all other numbers are finite,
// and at least one token is given. The error names the field and index.
absl::Status ValidateTrajectory(const Trajectory& trajectory);

// Lowest version among the sampled tokens; -1 when there are none.
int64_t OldestVersion(const Trajectory& trajectory);

// Number of tokens with loss_mask 1.
int64_t SampledTokens(const Trajectory& trajectory);

const char* ToString(TrajectoryStatus status);

}  // namespace millrace

#endif  // MILLRACE_COMMON_TRAJECTORY_H_
