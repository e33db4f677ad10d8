#include "buffer/degenerate_filter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace millrace {
namespace {

using enum TrajectoryStatus;

struct FilterCase {
  const char* what;
  std::vector<MemberVerdict> members;
  std::string reason;  // empty = kept
};

TEST(DegenerateFilterTest, GroupsAreJudgedByTheTable) {
  const FilterCase cases[] = {
      {"rewards differ", {{kCompleted, 0}, {kCompleted, 1}}, ""},
      {"all wrong", {{kCompleted, 0}, {kCompleted, 0}, {kCompleted, 0}}, "degenerate"},
      {"all right", {{kCompleted, 1}, {kCompleted, 1}}, "degenerate"},
      {"equal within the tolerance", {{kCompleted, 1}, {kCompleted, 1 + 1e-7}}, "degenerate"},
      {"differ by more than the tolerance", {{kCompleted, 1}, {kCompleted, 1 + 2e-6}}, ""},
      {"truncation is a verdict", {{kTruncated, 0}, {kCompleted, 1}}, ""},
      {"no verdict is not reward 0",
       {{kFailed, 0}, {kCompleted, 1}, {kCompleted, 1}},
       "degenerate"},
      {"a failed member does not spoil the others",
       {{kFailed, 0}, {kCompleted, 1}, {kCompleted, 0}},
       ""},
      {"one usable member is too few", {{kFailed, 0}, {kAborted, 0}, {kCompleted, 1}}, "failed"},
      {"none usable", {{kFailed, 0}, {kFailed, 1}}, "failed"},
  };
  for (const FilterCase& c : cases) {
    const GroupVerdict verdict = JudgeGroup(c.members);
    EXPECT_EQ(verdict.keep, c.reason.empty()) << c.what;
    EXPECT_EQ(verdict.reason, c.reason) << c.what;
    EXPECT_EQ(verdict.detail.empty(), verdict.keep) << c.what;
  }
}

TEST(DegenerateFilterTest, TheDetailSaysWhatWasSeen) {
  EXPECT_EQ(JudgeGroup({{kCompleted, 1}, {kTruncated, 1}}).detail, "all 2 rewards are 1");
  EXPECT_EQ(JudgeGroup({{kCompleted, 1}, {kFailed, 0}}).detail, "1 of 2 members have a verdict");
}

}  // namespace
}  // namespace millrace
