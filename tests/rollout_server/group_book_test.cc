#include "rollout_server/group_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/rollout_server/fakes.h"

namespace millrace {
namespace {

using ::millrace::testing::MakeLease;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Time kStart = absl::FromUnixSeconds(1000);

GroupLease LeaseAt(uint64_t group, int64_t min_version, absl::Duration lasts = absl::Seconds(60)) {
  GroupLease lease = MakeLease(group, group, {0, 2, 5});
  lease.min_version = min_version;
  lease.deadline = kStart + lasts;
  return lease;
}

TEST(GroupBook, AGroupIsDoneOnceEverySampleEndedAndEveryPushWasAnswered) {
  GroupBook book;
  book.Add(LeaseAt(1, 0), kStart);
  EXPECT_EQ(book.unfinished_samples(), 3u);
  EXPECT_EQ(book.generating_samples(), 0u);
  ASSERT_THAT(book.TakeSubmittable(0), SizeIs(1));
  EXPECT_EQ(book.generating_samples(), 3u);
  const LeaseName name{1, 0};
  book.SampleEnded(name);
  EXPECT_FALSE(book.PushAnswered(name, true).done);
  book.SampleEnded(name);
  book.SampleEnded(name);
  EXPECT_EQ(book.unfinished_samples(), 0u);
  EXPECT_FALSE(book.PushAnswered(name, true).done);
  const GroupBook::Ended ended = book.PushAnswered(name, true);
  EXPECT_TRUE(ended.done);
  EXPECT_TRUE(ended.whole);
  EXPECT_FALSE(ended.release);
  EXPECT_EQ(book.size(), 0u);
}

TEST(GroupBook, AGroupWithARefusedPushIsGivenBack) {
  GroupBook book;
  book.Add(LeaseAt(1, 0), kStart);
  book.TakeSubmittable(0);
  const LeaseName name{1, 0};
  GroupBook::Ended ended;
  for (bool stored : {true, false, true}) {
    book.SampleEnded(name);
    ended = book.PushAnswered(name, stored);
  }
  EXPECT_TRUE(ended.done);
  EXPECT_FALSE(ended.whole);
  EXPECT_TRUE(ended.release);
}

TEST(GroupBook, GroupsWaitForTheirVersion) {
  GroupBook book;
  book.Add(LeaseAt(1, 2), kStart);
  book.Add(LeaseAt(2, 4), kStart);
  EXPECT_EQ(book.AwaitedVersion(), 2);
  EXPECT_THAT(book.TakeSubmittable(1), IsEmpty());
  EXPECT_THAT(book.TakeSubmittable(3), SizeIs(1));
  EXPECT_EQ(book.AwaitedVersion(), 4);
  EXPECT_THAT(book.TakeSubmittable(3), IsEmpty());
  EXPECT_THAT(book.TakeSubmittable(4), SizeIs(1));
  EXPECT_EQ(book.AwaitedVersion(), -1);
}

TEST(GroupBook, OnlyWaitingGroupsBecomeOverdue) {
  GroupBook book;
  book.Add(LeaseAt(1, 0), kStart);
  book.Add(LeaseAt(2, 9), kStart);
  book.TakeSubmittable(0);
  EXPECT_THAT(book.TakeOverdue(kStart), IsEmpty());
  EXPECT_THAT(book.TakeOverdue(kStart + absl::Seconds(1)), ElementsAre(LeaseName{2, 0}));
  EXPECT_EQ(book.size(), 1u);
  EXPECT_EQ(book.unfinished_samples(), 3u);
}

TEST(GroupBook, LeasesAreRenewedAtHalfTheirTime) {
  GroupBook book;
  book.Add(LeaseAt(1, 0, absl::Seconds(60)), kStart);
  book.Add(LeaseAt(2, 0, absl::Seconds(100)), kStart);
  EXPECT_THAT(book.DueForRenewal(kStart + absl::Seconds(29)), IsEmpty());
  EXPECT_EQ(book.NextRenewal(), kStart + absl::Seconds(30));
  EXPECT_THAT(book.DueForRenewal(kStart + absl::Seconds(30)), ElementsAre(LeaseName{1, 0}));
  book.Renewed({{1, 0}}, kStart + absl::Seconds(130), kStart + absl::Seconds(30));
  EXPECT_EQ(book.NextRenewal(), kStart + absl::Seconds(50));
  EXPECT_THAT(book.DueForRenewal(kStart + absl::Seconds(80)),
              ElementsAre(LeaseName{1, 0}, LeaseName{2, 0}));
}

TEST(GroupBook, RemovingReturnsTheRequestsThatStillGenerate) {
  GroupBook book;
  for (uint64_t group : {1, 2, 3}) book.Add(LeaseAt(group, group == 3 ? 9 : 0), kStart);
  book.TakeSubmittable(0);
  book.SetRequest({1, 0}, 71);
  book.SetRequest({2, 0}, 72);
  for (int i = 0; i < 3; ++i) book.SampleEnded({2, 0});  // all ended, pushes under way
  EXPECT_THAT(book.Remove(book.Names()), ElementsAre(71));
  EXPECT_EQ(book.size(), 0u);
  EXPECT_EQ(book.unfinished_samples(), 0u);
  EXPECT_EQ(book.generating_samples(), 0u);
  EXPECT_FALSE(book.Wanted({2, 0}));
  EXPECT_FALSE(book.PushAnswered({2, 0}, true).done);  // late answers change nothing
}

}  // namespace
}  // namespace millrace
