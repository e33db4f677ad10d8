#include "common/clock.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/testing/fake_clock.h"

namespace millrace {
namespace {

using testing::FakeClock;

TEST(RealClockTest, TimeDoesNotGoBack) {
  Clock* clock = Clock::Real();
  absl::Time last = clock->Now();
  for (int i = 0; i < 1000; ++i) {
    const absl::Time now = clock->Now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(RealClockTest, AwaitSaysFalseWhenTheDeadlineHasPassed) {
  absl::Mutex mu;
  absl::MutexLock lock(&mu);
  bool done = false;
  EXPECT_FALSE(Clock::Real()->AwaitWithDeadline(&mu, absl::Condition(&done), absl::InfinitePast()));
}

TEST(RealClockTest, AwaitSaysTrueForATrueConditionEvenAfterTheDeadline) {
  absl::Mutex mu;
  absl::MutexLock lock(&mu);
  bool done = true;
  EXPECT_TRUE(Clock::Real()->AwaitWithDeadline(&mu, absl::Condition(&done), absl::InfinitePast()));
}

// A thread that waits on `clock` for `done` until `timeout` from now.
struct Waiting {
  Waiting(FakeClock* clock, absl::Duration timeout)
      : thread([this, clock, deadline = clock->Now() + timeout] {
          absl::MutexLock lock(&mu);
          result = clock->AwaitWithDeadline(&mu, absl::Condition(&done), deadline);
        }) {}
  absl::Mutex mu;
  bool done = false;
  bool result = false;
  std::thread thread;
};

TEST(FakeClockTest, TimeStandsStillUntilAdvanced) {
  FakeClock clock;
  const absl::Time start = clock.Now();
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(absl::Seconds(5));
  EXPECT_EQ(clock.Now(), start + absl::Seconds(5));
}

TEST(FakeClockTest, AdvancePastTheDeadlineWakesTheWaiter) {
  FakeClock clock;
  Waiting waiting(&clock, absl::Hours(1));
  ASSERT_TRUE(clock.AwaitWaiters(1));
  clock.Advance(absl::Hours(1));
  waiting.thread.join();
  EXPECT_FALSE(waiting.result);
}

TEST(FakeClockTest, AConditionThatBecomesTrueWakesTheWaiterWithoutAnyAdvance) {
  FakeClock clock;
  Waiting waiting(&clock, absl::Hours(1));
  ASSERT_TRUE(clock.AwaitWaiters(1));
  {
    absl::MutexLock lock(&waiting.mu);
    waiting.done = true;
  }
  waiting.thread.join();
  EXPECT_TRUE(waiting.result);
}

TEST(FakeClockTest, OnlyWaitersWhoseDeadlinePassedWake) {
  FakeClock clock;
  Waiting near(&clock, absl::Seconds(10));
  Waiting far(&clock, absl::Seconds(20));
  ASSERT_TRUE(clock.AwaitWaiters(2));
  clock.Advance(absl::Seconds(10));
  near.thread.join();
  EXPECT_FALSE(near.result);
  ASSERT_TRUE(clock.AwaitWaiters(1));  // the far one still waits
  clock.Advance(absl::Seconds(10));
  far.thread.join();
  EXPECT_FALSE(far.result);
}

TEST(FakeClockTest, ManyWaitersAndAdvancesRaceWithoutLosingAWakeUp) {
  for (int round = 0; round < 50; ++round) {
    FakeClock clock;
    std::vector<std::unique_ptr<Waiting>> waiters;
    for (int i = 1; i <= 4; ++i) {
      waiters.push_back(std::make_unique<Waiting>(&clock, absl::Seconds(i)));
    }
    for (int i = 0; i < 8; ++i) clock.Advance(absl::Milliseconds(500));
    for (auto& waiter : waiters) waiter->thread.join();
  }
}

}  // namespace
}  // namespace millrace
