// Time as a dependency, so that tests need no sleep. Thread-safe.
#ifndef MILLRACE_COMMON_CLOCK_H_
#define MILLRACE_COMMON_CLOCK_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace millrace {

class Clock {
 public:
  virtual ~Clock() = default;
  // Wall time; never goes back within a process (a monotonic clock anchored at start).
  virtual absl::Time Now() = 0;
  // Waits on `cond` (guarded by `mu`, held) until it is true or `deadline` passes; returns whether
  // it is true.
  virtual bool AwaitWithDeadline(absl::Mutex* mu, const absl::Condition& cond, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) = 0;
  static Clock* Real();  // never deleted
};

}  // namespace millrace

#endif  // MILLRACE_COMMON_CLOCK_H_
