// Group-relative advantages of trajectories (GRPO: Shao et al. 2024, DeepSeekMath, eq. 3). Plain
// code: no lock, clock or tensor.
//
// Members without a verdict (FAILED, ABORTED) have NaN for every component: they get advantage 0
// and take no part in any mean or standard deviation.
#ifndef MILLRACE_LEARNER_ADVANTAGE_H_
#define MILLRACE_LEARNER_ADVANTAGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace millrace {

enum class AdvantageScale {
  kGroup,  // (r - mean of the group) / (std of the group + 1e-4)
  kBatch,  // (r - mean of the group) / (std of the whole batch + 1e-4)
  kNone,   // r - mean of the group (Dr.GRPO: Liu et al. 2025)
};

enum class RewardAggregation {
  kSumThenNormalize,  // one reward, the weighted sum of the components
  kNormalizeThenSum,  // each component over its group, then the weighted sum over the batch
};

struct AdvantageOptions {
  AdvantageScale scale = AdvantageScale::kGroup;
  RewardAggregation aggregation = RewardAggregation::kSumThenNormalize;
  std::vector<double> weights;  // one a component; empty = all 1
};

// "group", "batch", "none" as in learner.advantage_scale.
absl::StatusOr<AdvantageScale> ParseAdvantageScale(const std::string& name);

// groups (N): group id of each member, in any order; rewards (N, components) row-major, NaN =
// missing. Returns (N). Standard deviations are unbiased (n - 1); of a single member it is 0.
absl::StatusOr<std::vector<double>> GroupAdvantages(absl::Span<const uint64_t> groups,
                                                    absl::Span<const double> rewards,
                                                    size_t components,
                                                    const AdvantageOptions& options);

}  // namespace millrace

#endif  // MILLRACE_LEARNER_ADVANTAGE_H_
