#include "common/clock.h"

#include <chrono>

namespace millrace {
namespace {

class RealClock : public Clock {
 public:
  absl::Time Now() override {
    return start_ + absl::FromChrono(std::chrono::steady_clock::now() - steady_start_);
  }

  bool AwaitWithDeadline(absl::Mutex* mu, const absl::Condition& cond, absl::Time deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return mu->AwaitWithTimeout(cond, deadline - Now());
  }

 private:
  const std::chrono::steady_clock::time_point steady_start_ = std::chrono::steady_clock::now();
  const absl::Time start_ = absl::Now();
};

}  // namespace

Clock* Clock::Real() {
  static Clock* const clock = new RealClock;
  return clock;
}

}  // namespace millrace
