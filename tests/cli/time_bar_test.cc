#include "cli/time_bar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/bar_fixture.h"

namespace millrace {
namespace {

using ::testing::EndsWith;

class TimeBarTest : public BarTest {};

TEST_F(TimeBarTest, ShowsThePaceAndTheTimeLeftOfTheWorkAlone) {
  TimeBar bar({out_, /*terminal=*/true, &clock_});
  clock_.Advance(absl::Seconds(30));  // the model is loaded
  bar.Update(0, 100);
  EXPECT_EQ(Written(), "");
  clock_.Advance(absl::Seconds(2));
  bar.Update(25, 100);
  EXPECT_EQ(Written(), "\r\x1b[K[#####...............] 25/100 samples, 12.5/s, 6s left");
  clock_.Advance(absl::Seconds(98));
  bar.Update(50, 100);
  EXPECT_THAT(Written(), EndsWith("\r\x1b[K[##########..........] 50/100 samples, 0.5/s, "
                                  "1m40s left"));
}

TEST_F(TimeBarTest, GoesAwayAtTheEnd) {
  TimeBar bar({out_, /*terminal=*/true, &clock_});
  bar.Update(0, 2);
  clock_.Advance(absl::Seconds(1));
  bar.Update(1, 2);
  EXPECT_THAT(Written(), EndsWith("1/2 samples, 1.0/s, 1s left"));
  bar.Update(2, 2);
  EXPECT_THAT(Written(), EndsWith("1s left\r\x1b[K"));
}

TEST_F(TimeBarTest, LeavesNothingBehindWhenTheWorkFails) {
  {
    TimeBar bar({out_, /*terminal=*/true, &clock_});
    bar.Update(0, 2);
    clock_.Advance(absl::Seconds(1));
    bar.Update(1, 2);
  }
  EXPECT_THAT(Written(), EndsWith("1s left\r\x1b[K"));
}

TEST_F(TimeBarTest, IsNothingWhereThereIsNoTerminal) {
  {
    TimeBar bar({out_, /*terminal=*/false, &clock_});
    bar.Update(0, 2);
    clock_.Advance(absl::Minutes(1));
    bar.Update(1, 2);
    bar.Update(2, 2);
  }
  EXPECT_EQ(Written(), "");
}

}  // namespace
}  // namespace millrace
