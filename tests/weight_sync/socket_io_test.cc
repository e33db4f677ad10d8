#include "weight_sync/socket_io.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// A server without connections waits with no deadline; it once got a timeout of 0 and span.
TEST(SocketIo, PollWaitsForTheDeadlineAndAtMostAMinute) {
  const absl::Time now = absl::FromUnixSeconds(1000);
  EXPECT_EQ(PollMillis(absl::InfiniteFuture(), now), 60'001);
  EXPECT_EQ(PollMillis(now + absl::Hours(5), now), 60'001);
  EXPECT_EQ(PollMillis(now + absl::Milliseconds(20), now), 21);
  EXPECT_EQ(PollMillis(now + absl::Nanoseconds(1), now), 1);
  EXPECT_EQ(PollMillis(now, now), 0);
  EXPECT_EQ(PollMillis(now - absl::Seconds(1), now), 0);
  EXPECT_EQ(PollMillis(absl::InfinitePast(), now), 0);
}

}  // namespace
}  // namespace millrace
