#include "learner/schedule.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace millrace {

absl::StatusOr<ScheduleKind> ParseScheduleKind(const std::string& name) {
  if (name == "constant") return ScheduleKind::kConstant;
  if (name == "cosine") return ScheduleKind::kCosine;
  return absl::InvalidArgumentError(
      absl::StrCat("learner.schedule is \"", name, "\"; valid: constant, cosine"));
}

double Schedule::At(int64_t update) const {
  if (update < warmup) return lr * static_cast<double>(update) / static_cast<double>(warmup);
  if (kind == ScheduleKind::kConstant) return lr;
  const double progress = static_cast<double>(update - warmup) /
                          static_cast<double>(std::max<int64_t>(1, total - warmup));
  const double factor = std::max(0.0, 0.5 * (1 + std::cos(M_PI * progress)));
  return lr * (factor * (1 - min_ratio) + min_ratio);
}

}  // namespace millrace
