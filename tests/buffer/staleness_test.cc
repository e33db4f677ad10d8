#include "buffer/staleness.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(LineageTest, IsTheDifferenceOfVersionsWithoutRestarts) {
  Lineage lineage;
  lineage.Add({0, 0});
  EXPECT_EQ(lineage.Staleness(5, 5), 0);
  EXPECT_EQ(lineage.Staleness(5, 2), 3);
  EXPECT_EQ(lineage.Staleness(2, 5), 0) << "sampled ahead of the learner";
}

TEST(LineageTest, ARestartedLearnerCountsUpdatesAndNotVersions) {
  Lineage lineage;
  lineage.Add({0, 0});   // versions 0..9 contain 0..9 updates
  lineage.Add({10, 6});  // a restart from the checkpoint of step 6
  EXPECT_EQ(lineage.Updates(9), 9);
  EXPECT_EQ(lineage.Updates(10), 6);
  EXPECT_EQ(lineage.Updates(12), 8);
  EXPECT_EQ(lineage.Staleness(10, 6), 0) << "the same weights under two numbers";
  EXPECT_EQ(lineage.Staleness(10, 5), 1);
  EXPECT_EQ(lineage.Staleness(10, 9), 0) << "from the abandoned branch, ahead";
  EXPECT_EQ(lineage.Staleness(13, 8), 1);
  EXPECT_EQ(lineage.newest_first(), 10);
}

}  // namespace
}  // namespace millrace
