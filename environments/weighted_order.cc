#include "environments/weighted_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

constexpr int64_t kLongestPeriod = 1000;

// Positions of each source in a period, from the weights.
std::vector<uint64_t> Counts(absl::Span<const double> weights) {
  double sum = 0;
  bool whole = true;
  for (const double weight : weights) {
    sum += weight;
    whole = whole && weight == std::floor(weight);
  }
  std::vector<uint64_t> counts;
  if (whole && sum <= kLongestPeriod) {
    uint64_t divisor = 0;
    for (const double weight : weights) divisor = std::gcd(divisor, static_cast<uint64_t>(weight));
    for (const double weight : weights) counts.push_back(static_cast<uint64_t>(weight) / divisor);
    return counts;
  }
  for (const double weight : weights) {
    counts.push_back(std::max<int64_t>(1, std::llround(weight / sum * kLongestPeriod)));
  }
  return counts;
}

}  // namespace

absl::StatusOr<WeightedName> ParseWeightedName(absl::string_view text) {
  WeightedName result;
  const absl::string_view all = absl::StripAsciiWhitespace(text);
  result.name = std::string(all);
  const size_t colon = all.rfind(':');
  double weight = 0;
  if (colon != absl::string_view::npos && absl::SimpleAtod(all.substr(colon + 1), &weight)) {
    result.name = std::string(all.substr(0, colon));
    result.weight = weight;
  }
  if (result.name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\": a name is missing"));
  }
  if (!(result.weight > 0) || result.weight > 1e6) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\": the weight ", result.weight, " is not above 0"));
  }
  return result;
}

WeightedOrder::WeightedOrder(absl::Span<const double> weights) : counts_(Counts(weights)) {
  const auto total =
      static_cast<int64_t>(std::accumulate(counts_.begin(), counts_.end(), uint64_t{0}));
  // Smooth weighted round robin: whoever is furthest behind its share comes next.
  std::vector<int64_t> behind(counts_.size(), 0);
  std::vector<uint64_t> used(counts_.size(), 0);
  for (int64_t i = 0; i < total; ++i) {
    size_t next = 0;
    for (size_t s = 0; s < counts_.size(); ++s) {
      behind[s] += static_cast<int64_t>(counts_[s]);
      if (behind[s] > behind[next]) next = s;
    }
    behind[next] -= total;
    period_.push_back({next, used[next]++});
  }
}

WeightedOrder::Slot WeightedOrder::At(uint64_t position) const {
  Slot slot = period_[position % period_.size()];
  slot.ordinal += position / period_.size() * counts_[slot.source];
  return slot;
}

}  // namespace millrace
