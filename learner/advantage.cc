#include "learner/advantage.h"

#include <cmath>
#include <limits>
#include <unordered_map>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

constexpr double kStdEpsilon = 1e-4;
constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

struct Moments {
  int64_t count = 0;
  double mean = 0;
  double deviation = 0;  // unbiased; 0 for fewer than two
};

// Over values[i] that are not NaN, for i in `members`.
Moments MomentsOf(const std::vector<double>& values, const std::vector<size_t>& members) {
  Moments m;
  double sum = 0;
  for (size_t i : members) {
    if (std::isnan(values[i])) continue;
    sum += values[i];
    ++m.count;
  }
  if (m.count == 0) return m;
  m.mean = sum / m.count;
  double squares = 0;
  for (size_t i : members) {
    if (!std::isnan(values[i])) squares += (values[i] - m.mean) * (values[i] - m.mean);
  }
  if (m.count > 1) m.deviation = std::sqrt(squares / (m.count - 1));
  return m;
}

using Members = std::vector<std::vector<size_t>>;  // member indices of each group

Members SplitByGroup(absl::Span<const uint64_t> groups) {
  std::unordered_map<uint64_t, size_t> where;
  Members members;
  for (size_t i = 0; i < groups.size(); ++i) {
    auto [it, fresh] = where.emplace(groups[i], members.size());
    if (fresh) members.emplace_back();
    members[it->second].push_back(i);
  }
  return members;
}

// NaN where the value is NaN.
std::vector<double> Normalize(const std::vector<double>& values, const Members& groups,
                              AdvantageScale scale, const std::vector<size_t>& all) {
  const Moments batch = MomentsOf(values, all);
  std::vector<double> out(values.size(), kMissing);
  for (const std::vector<size_t>& members : groups) {
    const Moments group = MomentsOf(values, members);
    double divisor = 1;
    if (scale == AdvantageScale::kGroup) divisor = group.deviation + kStdEpsilon;
    if (scale == AdvantageScale::kBatch) divisor = batch.deviation + kStdEpsilon;
    for (size_t i : members) out[i] = (values[i] - group.mean) / divisor;
  }
  return out;
}

// Weighted sum of what is there; NaN when nothing is.
std::vector<double> WeightedSum(const std::vector<std::vector<double>>& columns,
                                const std::vector<double>& weights) {
  std::vector<double> out(columns[0].size(), kMissing);
  for (size_t i = 0; i < out.size(); ++i) {
    for (size_t k = 0; k < columns.size(); ++k) {
      const double value = columns[k][i];
      if (std::isnan(value)) continue;
      out[i] = (std::isnan(out[i]) ? 0 : out[i]) + weights[k] * value;
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<AdvantageScale> ParseAdvantageScale(const std::string& name) {
  if (name == "group") return AdvantageScale::kGroup;
  if (name == "batch") return AdvantageScale::kBatch;
  if (name == "none") return AdvantageScale::kNone;
  return absl::InvalidArgumentError(
      absl::StrCat("learner.advantage_scale is \"", name, "\"; valid: group, batch, none"));
}

absl::StatusOr<std::vector<double>> GroupAdvantages(absl::Span<const uint64_t> groups,
                                                    absl::Span<const double> rewards,
                                                    size_t components,
                                                    const AdvantageOptions& options) {
  const size_t n = groups.size();
  std::vector<double> weights = options.weights;
  if (weights.empty()) weights.assign(components, 1.0);
  if (components == 0 || rewards.size() != n * components || weights.size() != components) {
    return absl::InvalidArgumentError(absl::StrCat("advantages: ", n, " members, ", rewards.size(),
                                                   " rewards, ", components, " components and ",
                                                   weights.size(), " weights do not agree"));
  }
  std::vector<size_t> all(n);
  for (size_t i = 0; i < n; ++i) all[i] = i;
  std::vector<std::vector<double>> columns(components, std::vector<double>(n));
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < components; ++k) columns[k][i] = rewards[i * components + k];
  }
  const Members members = SplitByGroup(groups);
  std::vector<double> out;
  if (options.aggregation == RewardAggregation::kSumThenNormalize) {
    out = Normalize(WeightedSum(columns, weights), members, options.scale, all);
  } else {
    for (std::vector<double>& column : columns) {
      column = Normalize(column, members, options.scale, all);
    }
    out = WeightedSum(columns, weights);
    const Moments batch = MomentsOf(out, all);
    for (double& value : out) value = (value - batch.mean) / (batch.deviation + kStdEpsilon);
  }
  for (double& value : out) {
    if (std::isnan(value)) value = 0;
  }
  return out;
}

}  // namespace millrace
