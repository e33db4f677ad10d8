// A clock that stands still until the test moves it. Thread-safe.
#ifndef MILLRACE_TESTS_TESTING_FAKE_CLOCK_H_
#define MILLRACE_TESTS_TESTING_FAKE_CLOCK_H_

#include <atomic>
#include <list>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"

namespace millrace::testing {

class FakeClock : public Clock {
 public:
  explicit FakeClock(absl::Time start = absl::FromUnixSeconds(1700000000));

  absl::Time Now() override;
  bool AwaitWithDeadline(absl::Mutex* mu, const absl::Condition& cond, absl::Time deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Moves the time on and wakes every waiter whose deadline has passed. The caller holds no mutex
  // that a waiter waits with.
  void Advance(absl::Duration by);
  // Waits (real time) until at least `count` threads wait on this clock; false after `limit`. Lets
  // a test advance only when the code under test has begun to wait.
  bool AwaitWaiters(int count, absl::Duration limit = absl::Seconds(30));

 private:
  struct Waiter {
    const FakeClock* clock;
    absl::Mutex* mu;
    const absl::Condition* cond;
    absl::Time deadline;
    int pins = 0;  // Advance() calls that are about to touch `mu`; guarded by mu_

    bool Ready() const { return cond->Eval() || clock->NowImpl() >= deadline; }
    bool Unpinned() const { return pins == 0; }
  };

  absl::Time NowImpl() const { return start_ + absl::Nanoseconds(elapsed_ns_.load()); }

  const absl::Time start_;
  std::atomic<int64_t> elapsed_ns_{0};  // read inside conditions, where no lock may be taken
  absl::Mutex mu_;
  std::list<Waiter*> waiters_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace::testing

#endif  // MILLRACE_TESTS_TESTING_FAKE_CLOCK_H_
