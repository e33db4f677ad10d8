#include "tests/testing/fake_clock.h"

#include <vector>

namespace millrace::testing {

FakeClock::FakeClock(absl::Time start) : start_(start) {}

absl::Time FakeClock::Now() { return NowImpl(); }

bool FakeClock::AwaitWithDeadline(absl::Mutex* mu, const absl::Condition& cond,
                                  absl::Time deadline) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  Waiter waiter{this, mu, &cond, deadline};
  while (true) {
    if (waiter.Ready()) return cond.Eval();
    {
      absl::MutexLock lock(&mu_);
      waiters_.push_back(&waiter);
    }
    mu->Await(absl::Condition(&waiter, &Waiter::Ready));
    // An Advance() that has seen this waiter will lock `mu`; it must have done so before `mu` may
    // go away, and it cannot while this thread holds it. Afterwards look again, since `cond` may
    // have changed in between.
    mu->Unlock();
    {
      absl::MutexLock lock(&mu_);
      waiters_.remove(&waiter);
      mu_.Await(absl::Condition(&waiter, &Waiter::Unpinned));
    }
    mu->Lock();
  }
}

void FakeClock::Advance(absl::Duration by) {
  elapsed_ns_.fetch_add(absl::ToInt64Nanoseconds(by));
  std::vector<Waiter*> pinned;
  {
    absl::MutexLock lock(&mu_);
    for (Waiter* waiter : waiters_) {
      ++waiter->pins;
      pinned.push_back(waiter);
    }
  }
  for (Waiter* waiter : pinned) {
    // Unlocking makes absl evaluate the conditions of those that wait on this mutex.
    waiter->mu->Lock();
    waiter->mu->Unlock();
    absl::MutexLock lock(&mu_);
    --waiter->pins;
  }
}

bool FakeClock::AwaitWaiters(int count, absl::Duration limit) {
  absl::MutexLock lock(&mu_);
  const auto enough = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return static_cast<int>(waiters_.size()) >= count;
  };
  return mu_.AwaitWithTimeout(absl::Condition(&enough), limit);
}

}  // namespace millrace::testing
