#include "common/trajectory.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

// Rounding may put the logprob of a certain token a little above 0.
constexpr float kLogprobTolerance = 1e-4f;

template <typename... Args>
absl::Status Bad(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

absl::Status CheckTokens(const Trajectory& t) {
  const size_t n = t.token_ids.size();
  if (n == 0) return Bad("token_ids is empty");
  if (t.loss_mask.size() != n) {
    return Bad("loss_mask has ", t.loss_mask.size(), " entries, token_ids has ", n);
  }
  if (t.logprobs.size() != n) {
    return Bad("logprobs has ", t.logprobs.size(), " entries, token_ids has ", n);
  }
  for (size_t i = 0; i < n; ++i) {
    if (t.token_ids[i] < 0) return Bad("token_ids[", i, "] is ", t.token_ids[i]);
    if (t.loss_mask[i] > 1) {
      return Bad("loss_mask[", i, "] is ", static_cast<int>(t.loss_mask[i]), "; valid: 0, 1");
    }
    if (t.loss_mask[i] == 1 &&
        (!std::isfinite(t.logprobs[i]) || t.logprobs[i] > kLogprobTolerance)) {
      return Bad("logprobs[", i, "] is ", t.logprobs[i], "; valid: finite and <= 0");
    }
  }
  return absl::OkStatus();
}

// Spans must cover the masked-in tokens, each once, in order, and nothing else.
absl::Status CheckVersions(const Trajectory& t) {
  const size_t n = t.token_ids.size();
  size_t next = 0;  // first token not yet accounted for
  for (size_t s = 0; s < t.versions.size(); ++s) {
    const VersionSpan& span = t.versions[s];
    if (span.version < 0) return Bad("versions[", s, "].version is ", span.version);
    if (span.begin >= span.end || span.end > n || span.begin < next) {
      return Bad("versions[", s, "] is [", span.begin, ", ", span.end,
                 "): empty, out of order, or ", "beyond the ", n, " tokens");
    }
    for (; next < span.begin; ++next) {
      if (t.loss_mask[next] == 1) return Bad("versions: sampled token ", next, " has no version");
    }
    for (; next < span.end; ++next) {
      if (t.loss_mask[next] == 0) {
        return Bad("versions[", s, "] covers token ", next, ", which was not sampled");
      }
    }
  }
  for (; next < n; ++next) {
    if (t.loss_mask[next] == 1) return Bad("versions: sampled token ", next, " has no version");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateTrajectory(const Trajectory& trajectory) {
  MR_RETURN_IF_ERROR(CheckTokens(trajectory));
  MR_RETURN_IF_ERROR(CheckVersions(trajectory));
  if (!std::isfinite(trajectory.reward)) return Bad("reward is ", trajectory.reward);
  if (!std::isfinite(trajectory.temperature) || trajectory.temperature < 0) {
    return Bad("temperature is ", trajectory.temperature);
  }
  if (!std::isfinite(trajectory.generate_seconds)) {
    return Bad("generate_seconds is ", trajectory.generate_seconds);
  }
  for (size_t i = 0; i < trajectory.reward_components.size(); ++i) {
    const RewardComponent& component = trajectory.reward_components[i];
    if (!std::isfinite(component.value)) {
      return Bad("reward_components[", i, "] (", component.name, ") is ", component.value);
    }
  }
  return absl::OkStatus();
}

int64_t OldestVersion(const Trajectory& trajectory) {
  int64_t oldest = -1;
  for (const VersionSpan& span : trajectory.versions) {
    if (oldest < 0 || span.version < oldest) oldest = span.version;
  }
  return oldest;
}

int64_t SampledTokens(const Trajectory& trajectory) {
  int64_t count = 0;
  for (uint8_t mask : trajectory.loss_mask) count += mask;
  return count;
}

const char* ToString(TrajectoryStatus status) {
  switch (status) {
    case TrajectoryStatus::kCompleted:
      return "COMPLETED";
    case TrajectoryStatus::kTruncated:
      return "TRUNCATED";
    case TrajectoryStatus::kAborted:
      return "ABORTED";
    case TrajectoryStatus::kFailed:
      return "FAILED";
  }
  return "UNKNOWN";
}

}  // namespace millrace
