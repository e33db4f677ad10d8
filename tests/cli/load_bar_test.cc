#include "cli/load_bar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/bar_fixture.h"

namespace millrace {
namespace {

using ::testing::EndsWith;

class LoadBarTest : public BarTest {};

TEST_F(LoadBarTest, AShortLoadingShowsNothing) {
  for (const bool terminal : {false, true}) {
    LoadBar bar("loading m", {out_, terminal, &clock_});
    bar.Update(0.1);
    clock_.Advance(absl::Milliseconds(900));
    bar.Update(0.9);
    bar.Update(1);
  }
  EXPECT_EQ(Written(), "");
}

TEST_F(LoadBarTest, ALongOneIsABarOnATerminalThatLeavesNothingBehind) {
  {
    LoadBar bar("loading m", {out_, /*terminal=*/true, &clock_});
    clock_.Advance(absl::Seconds(2));
    bar.callback()(0.25);
    EXPECT_THAT(Written(), EndsWith("loading m [#####...............] 25 %, 6s left"));
    clock_.Advance(absl::Milliseconds(50));
    bar.Update(0.3);  // too soon to draw it again
    EXPECT_THAT(Written(), EndsWith("25 %, 6s left"));
    clock_.Advance(absl::Milliseconds(50));
    bar.Update(0.5);
    EXPECT_THAT(Written(), EndsWith("50 %, 2s left"));
  }
  EXPECT_THAT(Written(), EndsWith("\r\x1b[K"));  // also when it ends with an error
}

TEST_F(LoadBarTest, ElsewhereItIsLines) {
  LoadBar bar("loading m", {out_, /*terminal=*/false, &clock_});
  clock_.Advance(absl::Seconds(1));
  bar.Update(0.2);
  clock_.Advance(absl::Seconds(4));
  bar.Update(0.8);
  clock_.Advance(absl::Seconds(1));
  bar.Update(0.9);
  bar.Update(1);
  EXPECT_EQ(Written(), "loading m: 20 %\nloading m: 90 %\n");
}

}  // namespace
}  // namespace millrace
