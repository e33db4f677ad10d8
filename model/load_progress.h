// Saying how far a job is that may take long, and nothing where it doesn't. Not thread-safe.
#ifndef MILLRACE_MODEL_LOAD_PROGRESS_H_
#define MILLRACE_MODEL_LOAD_PROGRESS_H_

#include <functional>
#include <string>

#include "absl/time/time.h"
#include "common/clock.h"

namespace millrace {

// When it is time to say something: not in the first second, then every `interval`.
class ProgressPace {
 public:
  explicit ProgressPace(absl::Duration interval, Clock* clock = Clock::Real());
  bool Due();
  bool spoke() const { return spoke_; }  // whether it was ever due
  absl::Duration elapsed() const { return clock_->Now() - start_; }

 private:
  const absl::Duration interval_;
  Clock* const clock_;
  const absl::Time start_;
  absl::Time next_;
  bool spoke_ = false;
};

// Takes growing fractions, the last of them 1, and logs lines "<what>: 37 %" every five seconds of
// a job that takes longer than one, and one at its end.
std::function<void(double fraction)> LoggedProgress(const std::string& what,
                                                    Clock* clock = Clock::Real());

}  // namespace millrace

#endif  // MILLRACE_MODEL_LOAD_PROGRESS_H_
