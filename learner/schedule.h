// Learning-rate schedules, with transformers' get_scheduler as reference. Plain code.
#ifndef MILLRACE_LEARNER_SCHEDULE_H_
#define MILLRACE_LEARNER_SCHEDULE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace millrace {

enum class ScheduleKind { kConstant, kCosine };

struct Schedule {
  ScheduleKind kind = ScheduleKind::kConstant;
  double lr = 0;
  int64_t warmup = 0;    // updates; the rate rises linearly from 0, so update 0 has rate 0 then
  int64_t total = 0;     // updates of the run (cosine)
  double min_ratio = 0;  // cosine ends at lr * this

  // Rate used by optimizer update `update`, counted from 0.
  double At(int64_t update) const;
};

// "constant", "cosine" as in learner.schedule.
absl::StatusOr<ScheduleKind> ParseScheduleKind(const std::string& name);

}  // namespace millrace

#endif  // MILLRACE_LEARNER_SCHEDULE_H_
