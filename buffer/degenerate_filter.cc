#include "buffer/degenerate_filter.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace millrace {

bool IsUsable(TrajectoryStatus status) {
  return status == TrajectoryStatus::kCompleted || status == TrajectoryStatus::kTruncated;
}

GroupVerdict JudgeGroup(absl::Span<const MemberVerdict> members) {
  size_t usable = 0;
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const MemberVerdict& member : members) {
    if (!IsUsable(member.status)) continue;
    ++usable;
    low = std::min(low, member.reward);
    high = std::max(high, member.reward);
  }
  if (usable < 2) {
    return {false, std::string(kDropFailed),
            absl::StrCat(usable, " of ", members.size(), " members have a verdict")};
  }
  if (high - low <= kRewardTolerance) {
    return {false, std::string(kDropDegenerate),
            absl::StrCat("all ", usable, " rewards are ", low)};
  }
  return {};
}

}  // namespace millrace
