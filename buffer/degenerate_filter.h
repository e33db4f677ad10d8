// Judges a complete group: does it carry a gradient? Plain code: no lock, clock or I/O.
//
// Members without a verdict (ABORTED, FAILED) are not members with reward 0: they are left out of
// the judgement. A group with fewer than two usable members is dropped as `failed`; one whose
// usable rewards are all equal within 1e-6 has advantage 0 everywhere and is dropped as
// `degenerate`.
#ifndef MILLRACE_BUFFER_DEGENERATE_FILTER_H_
#define MILLRACE_BUFFER_DEGENERATE_FILTER_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/trajectory.h"

namespace millrace {

// Why a group was dropped. These names are in metrics, in the store and in BatchEnd.dropped.
inline constexpr absl::string_view kDropDegenerate = "degenerate";
inline constexpr absl::string_view kDropFailed = "failed";
inline constexpr absl::string_view kDropStale = "stale";
inline constexpr absl::string_view kDropAttempts = "attempts_exhausted";

struct MemberVerdict {
  TrajectoryStatus status = TrajectoryStatus::kCompleted;
  double reward = 0;
};

struct GroupVerdict {
  bool keep = true;
  std::string reason;  // one of the names above when not kept
  std::string detail;  // for people, e.g. "all 8 rewards are 1"
};

bool IsUsable(TrajectoryStatus status);
GroupVerdict JudgeGroup(absl::Span<const MemberVerdict> members);

}  // namespace millrace

#endif  // MILLRACE_BUFFER_DEGENERATE_FILTER_H_
