#include "common/backoff.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(BackoffTest, DelaysDoubleUpToTheMaximumWithoutJitter) {
  Backoff backoff({absl::Seconds(1), absl::Seconds(5), 2, /*jitter=*/0}, /*seed=*/1);
  for (int expected : {1, 2, 4, 5, 5, 5}) EXPECT_EQ(backoff.Next(), absl::Seconds(expected));
  EXPECT_EQ(backoff.failures(), 6);
}

TEST(BackoffTest, AfterResetTheDelayIsTheFirstAgain) {
  Backoff backoff({absl::Seconds(1), absl::Seconds(60), 2, 0}, 1);
  backoff.Next();
  backoff.Next();
  backoff.Reset();
  EXPECT_EQ(backoff.failures(), 0);
  EXPECT_EQ(backoff.Next(), absl::Seconds(1));
}

TEST(BackoffTest, JitterShortensADelayByItsFractionAtMostAndNeverPassesTheMaximum) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    Backoff backoff({absl::Seconds(1), absl::Seconds(8), 2, 0.25}, seed);
    for (int nominal : {1, 2, 4, 8, 8}) {
      const absl::Duration delay = backoff.Next();
      EXPECT_LE(delay, absl::Seconds(nominal));
      EXPECT_GE(delay, absl::Seconds(nominal) * 0.75);
    }
  }
}

TEST(BackoffTest, SeedsDecideTheJitter) {
  Backoff a({}, 7), b({}, 7), c({}, 8);
  const absl::Duration first = a.Next();
  EXPECT_EQ(first, b.Next());
  EXPECT_NE(first, c.Next());
}

}  // namespace
}  // namespace millrace
