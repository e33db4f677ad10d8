#include "buffer/group_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/buffer/small_store.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using millrace::testing::Fill;
using millrace::testing::IsOkAndHolds;
using millrace::testing::Push;
using millrace::testing::Small;
using millrace::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

TEST(GroupStoreTest, LeasesWaitForTheFirstWeights) {
  GroupStore store(Small());
  EXPECT_FALSE(store.CanGrant());
  EXPECT_THAT(store.WhyNoLease(), HasSubstr("publish"));
  ASSERT_OK(store.SetVersion(0, false, 0));
  EXPECT_THAT(store.Grant("a", 10, 0), SizeIs(4));
  EXPECT_EQ(store.WhyNoLease(),
            "admission: 4 of 4 groups in flight (4 leased, 0 ready, 0 in training)");
}

TEST(GroupStoreTest, ALeaseNamesTheProblemTheSeedAndWhatIsMissing) {
  GroupStore store(Small());
  ASSERT_OK(store.SetVersion(0, false, 0));
  const std::vector<LeaseGrant> leases = store.Grant("a", 2, 50);
  ASSERT_THAT(leases, SizeIs(2));
  EXPECT_EQ(leases[0].group_id, 1u);
  EXPECT_EQ(leases[0].problem_id, 0u);
  EXPECT_EQ(leases[1].problem_id, 1u);
  EXPECT_NE(leases[0].seed, leases[1].seed);
  EXPECT_THAT(leases[0].missing, ElementsAre(0, 1));
  EXPECT_EQ(leases[0].deadline_ms, 1050);
  EXPECT_EQ(leases[0].attempt, 0u);
}

TEST(GroupStoreTest, AnExpiredLeaseIsGivenOutAgainAndFinishedMembersAreKept) {
  GroupStore store(Small());
  ASSERT_OK(store.SetVersion(0, false, 0));
  const LeaseGrant first = store.Grant("a", 1, 0)[0];
  EXPECT_EQ(Push(store, first, 1, 1), PushVerdict::kAccept);
  EXPECT_EQ(store.ExpireLeases(999), 0);
  EXPECT_EQ(store.NextLeaseDeadline(), 1000);
  EXPECT_EQ(store.ExpireLeases(1000), 1);
  const LeaseGrant second = store.Grant("b", 1, 1000)[0];
  EXPECT_EQ(second.group_id, first.group_id);
  EXPECT_EQ(second.attempt, 1u);
  EXPECT_EQ(second.seed, first.seed);
  EXPECT_THAT(second.missing, ElementsAre(0));
  EXPECT_EQ(store.Counts().expired_leases, 1);
}

TEST(GroupStoreTest, ANewProcessOfAServerFreesTheLeasesOfTheOneBefore) {
  GroupStore store(Small());
  ASSERT_OK(store.SetVersion(0, false, 0));
  EXPECT_EQ(store.Arrive("a", 100, 0), 0);
  const std::vector<LeaseGrant> old = store.Grant("a", 2, 0);
  const LeaseGrant other = store.Grant("b", 1, 0)[0];
  EXPECT_EQ(Push(store, old[0], 1, 1), PushVerdict::kAccept);
  EXPECT_EQ(store.Arrive("a", 100, 0), 0) << "the same process asks again";
  EXPECT_EQ(store.Arrive("a", 200, 0), 2);
  EXPECT_EQ(store.Counts().active_leases, 1) << "that of b";
  EXPECT_TRUE(store.Renew("b", other.group_id, 0, 0));
  EXPECT_FALSE(store.Renew("a", old[0].group_id, 0, 0));
  EXPECT_EQ(store.Counts().expired_leases, 2);
  const LeaseGrant again = store.Grant("a", 1, 0)[0];
  EXPECT_EQ(again.group_id, old[0].group_id);
  EXPECT_EQ(again.attempt, 1u);
  EXPECT_THAT(again.missing, ElementsAre(0)) << "what was stored is kept";
  // As after a lease that ran out.
  EXPECT_EQ(Push(store, old[0], 0, 0), PushVerdict::kAccept) << "late, but still missing";
  EXPECT_EQ(Push(store, again, 0, 0), PushVerdict::kRefuse);
  EXPECT_EQ(store.Counts().in_flight.ready, 1);
}

TEST(GroupStoreTest, TheOlderOfTwoProcessesTakesNothingFromTheNewer) {
  GroupStore store(Small());
  ASSERT_OK(store.SetVersion(0, false, 0));
  store.Arrive("a", 200, 0);
  const LeaseGrant lease = store.Grant("a", 1, 0)[0];
  EXPECT_EQ(store.Arrive("a", 100, 0), 0) << "whoever started both under one name";
  EXPECT_EQ(store.Arrive("a", 0, 0), 0) << "and one that does not say when it began";
  EXPECT_TRUE(store.Renew("a", lease.group_id, 0, 0));
}

TEST(GroupStoreTest, AGroupThatKeepsKillingItsServerIsDropped) {
  GroupStore store(Small());
  ASSERT_OK(store.SetVersion(0, false, 0));
  for (uint64_t life = 1; life <= 3; ++life) {
    store.Arrive("a", life, 0);
    ASSERT_EQ(store.Grant("a", 1, 0)[0].group_id, 1u);
  }
  store.Arrive("a", 4, 0);
  EXPECT_THAT(store.Counts().dropped, ElementsAre(Pair("attempts_exhausted", 1)));
}

TEST(GroupStoreTest, OnlyServersWithLeasesAreRemembered) {
  GroupStore store(Small());
  ASSERT_OK(store.SetVersion(0, false, 0));
  for (uint64_t i = 1; i <= 50; ++i) store.Arrive("container-" + std::to_string(i), i, 0);
  ASSERT_THAT(store.Grant("container-50", 1, 0), SizeIs(1));
  store.Arrive("b", 100, 0);
  EXPECT_THAT(store.meta().instances, ElementsAre(Pair("b", 100), Pair("container-50", 50)));
}

TEST(GroupStoreTest, ALatePushOfAnOldAttemptCountsWhileItsIndexIsMissing) {
  GroupStore store(Small());
  ASSERT_OK(store.SetVersion(0, false, 0));
  const LeaseGrant first = store.Grant("a", 1, 0)[0];
  store.ExpireLeases(1000);
  const LeaseGrant second = store.Grant("b", 1, 1000)[0];
  EXPECT_EQ(Push(store, first, 0, 1), PushVerdict::kAccept) << "late, but still missing";
  EXPECT_EQ(Push(store, first, 0, 1), PushVerdict::kDuplicate);
  EXPECT_EQ(Push(store, second, 0, 0), PushVerdict::kRefuse) << "there from attempt 0";
  EXPECT_EQ(Push(store, second, 1, 0), PushVerdict::kAccept);
  EXPECT_EQ(store.Counts().in_flight.ready, 1);
  EXPECT_EQ(Push(store, first, 1, 0), PushVerdict::kRefuse);
  EXPECT_EQ(Push(store, second, 1, 0), PushVerdict::kDuplicate);
}

TEST(GroupStoreTest, RefusalsNameTheFieldAndTheLimit) {
  GroupStore store(Small());
  ASSERT_OK(store.SetVersion(0, false, 0));
  const LeaseGrant lease = store.Grant("a", 1, 0)[0];
  EXPECT_THAT(store.Reserve({99, 0, 0, 0}).reason, HasSubstr("group 99 was never leased"));
  EXPECT_THAT(store.Reserve({lease.group_id, 2, 0, 0}).reason,
              HasSubstr("key.index: 2 is not below the group size 2"));
  EXPECT_THAT(store.Reserve({lease.group_id, 0, 1, 0}).reason, HasSubstr("key.attempt"));
  EXPECT_THAT(store.Reserve({lease.group_id, 0, 0, 8}).reason, HasSubstr("problem_id: 8"));
  Fill(store, lease, false);
  EXPECT_EQ(store.Reserve({lease.group_id, 0, 0, 0}).kind, PushVerdict::kDuplicate);
  EXPECT_THAT(store.Reserve({lease.group_id, 0, 1, 0}).reason, HasSubstr("dropped as degenerate"));
}

TEST(GroupStoreTest, OnlyTheNewestEndedGroupsAreRemembered) {
  GroupStoreOptions options = Small();
  options.remembered_groups = 2;
  GroupStore store(options);
  ASSERT_OK(store.SetVersion(0, false, 0));
  std::vector<LeaseGrant> leases = store.Grant("a", 4, 0);
  for (size_t i = 0; i < 3; ++i) Fill(store, leases[i], /*good=*/false);
  const auto again = [&](const LeaseGrant& lease) {
    return store.Reserve({lease.group_id, 0, lease.attempt, lease.problem_id});
  };
  EXPECT_EQ(again(leases[0]).kind, PushVerdict::kRefuse);
  EXPECT_THAT(again(leases[0]).reason, HasSubstr("group 1 ended long ago"));
  EXPECT_EQ(again(leases[1]).kind, PushVerdict::kDuplicate);
  EXPECT_EQ(again(leases[2]).kind, PushVerdict::kDuplicate);
  EXPECT_EQ(again(leases[3]).kind, PushVerdict::kAccept);  // the one that is still leased
}

TEST(GroupStoreTest, AMemberThatDidNotReachTheDiskIsMissingAgain) {
  GroupStore store(Small());
  ASSERT_OK(store.SetVersion(0, false, 0));
  const LeaseGrant lease = store.Grant("a", 1, 0)[0];
  EXPECT_EQ(store.Reserve({1, 0, 0, 0}).kind, PushVerdict::kAccept);
  EXPECT_EQ(store.Reserve({1, 0, 0, 0}).kind, PushVerdict::kDuplicate) << "on its way";
  store.Unreserve(1, 0);
  EXPECT_EQ(Push(store, lease, 0, 1), PushVerdict::kAccept);
}

TEST(GroupStoreTest, OnlyTheHolderRenewsAndReleases) {
  GroupStore store(Small());
  ASSERT_OK(store.SetVersion(0, false, 0));
  const LeaseGrant lease = store.Grant("a", 1, 0)[0];
  EXPECT_FALSE(store.Renew("b", lease.group_id, 0, 500));
  EXPECT_FALSE(store.Renew("a", lease.group_id, 1, 500));
  EXPECT_TRUE(store.Renew("a", lease.group_id, 0, 500));
  EXPECT_EQ(store.ExpireLeases(1000), 0);
  store.Release("b", lease.group_id, 0);
  EXPECT_EQ(store.Counts().active_leases, 1);
  store.Release("a", lease.group_id, 0);
  EXPECT_EQ(store.Counts().active_leases, 0);
  EXPECT_FALSE(store.Renew("a", lease.group_id, 0, 600)) << "given back";
  EXPECT_EQ(store.Grant("b", 1, 600)[0].attempt, 1u);
  EXPECT_EQ(store.Counts().expired_leases, 0) << "a lease given back did not run out";
}

TEST(GroupStoreTest, AGroupWhoseLeasesKeepRunningOutIsDropped) {
  GroupStore store(Small());
  ASSERT_OK(store.SetVersion(0, false, 0));
  for (int64_t i = 0; i < 3; ++i) {
    ASSERT_EQ(store.Grant("a", 1, i * 1000)[0].group_id, 1u);
    EXPECT_EQ(store.ExpireLeases((i + 1) * 1000), 1);
  }
  EXPECT_THAT(store.Counts().dropped, ElementsAre(Pair("attempts_exhausted", 1)));
  EXPECT_EQ(store.Grant("a", 1, 9000)[0].group_id, 2u);
}

TEST(GroupStoreTest, DroppedGroupsFreeTheirSlotAndRaiseTheExpectedDropRate) {
  GroupStore store(Small());
  ASSERT_OK(store.SetVersion(0, false, 0));
  const std::vector<LeaseGrant> leases = store.Grant("a", 10, 0);
  EXPECT_FALSE(store.CanGrant());
  Fill(store, leases[0], false);
  EXPECT_TRUE(store.CanGrant());
  const GroupCounts counts = store.Counts();
  EXPECT_THAT(counts.dropped, ElementsAre(Pair("degenerate", 1)));
  EXPECT_EQ(counts.dropped_tokens, 20);
  EXPECT_DOUBLE_EQ(counts.drop_rate, 0.05);
}

TEST(GroupStoreTest, ABatchIsTakenWholeAndTheSameStepGivesItAgain) {
  GroupStore store(Small());
  ASSERT_OK(store.SetVersion(0, false, 0));
  const std::vector<LeaseGrant> leases = store.Grant("a", 10, 0);
  Fill(store, leases[2]);
  EXPECT_THAT(store.TakeBatch(1, 0, 0), IsOkAndHolds(IsEmpty()));
  EXPECT_EQ(store.WhyNoBatch(),
            "groups: 1 of 2 ready, 3 leased (3 held by a server), 0 dropped "
            "so far");
  Fill(store, leases[1], false);
  Fill(store, leases[0]);
  Fill(store, leases[3]);
  EXPECT_THAT(store.TakeBatch(1, 0, 0), IsOkAndHolds(ElementsAre(1, 3)));
  EXPECT_THAT(store.TakeBatch(1, 0, 0), IsOkAndHolds(ElementsAre(1, 3)));
  EXPECT_THAT(store.FindBatch(1)->dropped, ElementsAre(Pair("degenerate", 1)));
  EXPECT_THAT(store.TakeBatch(3, 0, 0),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("newest one handed out")));
  EXPECT_THAT(store.Commit(1, 0), IsOkAndHolds(2u));
  EXPECT_THAT(store.Commit(1, 0), IsOkAndHolds(0u));
  EXPECT_THAT(store.TakeBatch(1, 0, 0),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("committed")));
  EXPECT_THAT(store.Commit(2, 0), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(GroupStoreTest, TheOldestVersionsAreTrainedFirst) {
  GroupStore store(Small(3));
  ASSERT_OK(store.SetVersion(0, false, 0));
  ASSERT_OK(store.SetVersion(2, false, 0));
  const std::vector<LeaseGrant> leases = store.Grant("a", 4, 0);
  Fill(store, leases[0], true, 2);
  Fill(store, leases[1], true, 2);
  Fill(store, leases[2], true, 1);
  EXPECT_THAT(store.TakeBatch(1, 2, 0), IsOkAndHolds(ElementsAre(3, 1)));
}

TEST(GroupStoreTest, WithNoLeadEveryBatchIsSampledByTheWeightsItTrains) {
  GroupStore store(Small(0));
  ASSERT_OK(store.SetVersion(0, false, 0));
  std::vector<LeaseGrant> leases = store.Grant("a", 10, 0);
  ASSERT_THAT(leases, SizeIs(2));
  Fill(store, leases[0]);
  Fill(store, leases[1]);
  EXPECT_FALSE(store.CanGrant()) << "ready groups hold the slots";
  EXPECT_THAT(store.TakeBatch(1, 0, 0), IsOkAndHolds(SizeIs(2)));
  EXPECT_FALSE(store.CanGrant()) << "and so do those in training";
  ASSERT_OK(store.SetVersion(1, false, 0));
  leases = store.Grant("a", 10, 0);
  ASSERT_THAT(leases, SizeIs(2));
  EXPECT_EQ(leases[0].min_version, 1);
  Fill(store, leases[0], true, 0);  // a server that ignored min_version
  EXPECT_THAT(store.Counts().dropped, ElementsAre(Pair("stale", 1)));
}

TEST(GroupStoreTest, AskingForTheNextBatchSaysThatTheLastOneIsTrained) {
  GroupStore store(Small(0));
  ASSERT_OK(store.SetVersion(0, false, 0));
  for (const LeaseGrant& lease : store.Grant("a", 2, 0)) Fill(store, lease);
  ASSERT_THAT(store.TakeBatch(1, 0, 0), IsOkAndHolds(SizeIs(2)));
  EXPECT_THAT(store.TakeBatch(2, 1, 0), IsOkAndHolds(IsEmpty()));
  EXPECT_EQ(store.meta().version, 1);
  EXPECT_EQ(store.Grant("a", 10, 0)[0].min_version, 1);
}

TEST(GroupStoreTest, StaleGroupsAreDroppedOrTheirProblemIsGivenOutAgain) {
  for (const bool retry : {false, true}) {
    GroupStoreOptions options = Small();
    options.max_staleness = 1;
    options.retry_stale = retry;
    GroupStore store(options);
    ASSERT_OK(store.SetVersion(0, false, 0));
    const LeaseGrant lease = store.Grant("a", 1, 0)[0];
    Fill(store, lease);
    ASSERT_OK(store.SetVersion(1, false, 0));
    EXPECT_EQ(store.Counts().in_flight.ready, 1);
    ASSERT_OK(store.SetVersion(2, false, 0));
    EXPECT_EQ(store.Counts().in_flight.ready, 0);
    EXPECT_THAT(store.Counts().dropped, ElementsAre(Pair("stale", 1)));
    const LeaseGrant next = store.Grant("a", 1, 0)[0];
    EXPECT_EQ(next.group_id, 2u);
    EXPECT_EQ(next.attempt, 0u);
    EXPECT_EQ(next.problem_id, retry ? lease.problem_id : lease.problem_id + 1);
  }
}

TEST(GroupStoreTest, RewindReturnsWhatWasNotCommittedInTheSameOrder) {
  GroupStore store(Small(3));
  ASSERT_OK(store.SetVersion(0, false, 0));
  const std::vector<LeaseGrant> leases = store.Grant("a", 8, 0);
  for (const int i : {0, 1, 3, 4, 5, 6}) Fill(store, leases[i]);
  ASSERT_THAT(store.TakeBatch(1, 0, 0), IsOkAndHolds(ElementsAre(1, 2)));
  ASSERT_OK(store.SetVersion(1, false, 0));
  ASSERT_THAT(store.TakeBatch(2, 1, 0), IsOkAndHolds(ElementsAre(4, 5)));
  ASSERT_THAT(store.Commit(1, 0), IsOkAndHolds(2u));
  ASSERT_OK(store.SetVersion(2, false, 0));
  ASSERT_THAT(store.TakeBatch(3, 2, 0), IsOkAndHolds(ElementsAre(6, 7)));
  Fill(store, leases[2]);  // older than what was handed out, but it was not in those batches
  Fill(store, leases[7]);
  EXPECT_THAT(store.Rewind(1, 0), IsOkAndHolds(4u));
  EXPECT_EQ(store.meta().version, 2);
  EXPECT_FALSE(store.CanGrant()) << "no leases for weights that are gone";
  EXPECT_THAT(store.TakeBatch(2, 2, 0), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(store.SetVersion(2, false, 0), StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_OK(store.SetVersion(3, false, 0));
  EXPECT_THAT(store.TakeBatch(2, 3, 0), IsOkAndHolds(ElementsAre(4, 5)));
  ASSERT_OK(store.SetVersion(4, false, 0));
  EXPECT_THAT(store.TakeBatch(3, 4, 0), IsOkAndHolds(ElementsAre(6, 7)));
  EXPECT_THAT(store.TakeBatch(4, 4, 0), IsOkAndHolds(ElementsAre(3, 8)));
}

TEST(GroupStoreTest, ARewindBehindTheCommittedStepReturnsThoseGroupsToo) {
  GroupStore store(Small(3));
  ASSERT_OK(store.SetVersion(0, false, 0));
  for (const LeaseGrant& lease : store.Grant("a", 8, 0)) Fill(store, lease);
  for (uint64_t step = 1; step <= 3; ++step) {
    ASSERT_THAT(store.TakeBatch(step, static_cast<int64_t>(step) - 1, 0), IsOkAndHolds(SizeIs(2)));
    ASSERT_OK(store.SetVersion(static_cast<int64_t>(step), false, 0));
  }
  ASSERT_THAT(store.Commit(3, 0), IsOkAndHolds(6u));
  EXPECT_THAT(store.Rewind(1, 0), IsOkAndHolds(4u));
  EXPECT_EQ(store.Counts().committed, 2);
  EXPECT_EQ(store.meta().committed_step, 1u);
}

TEST(GroupStoreTest, AnOldVersionIsAnErrorThatNamesRewind) {
  GroupStore store(Small());
  ASSERT_OK(store.SetVersion(5, false, 0));
  ASSERT_OK(store.SetVersion(5, false, 0)) << "a repeated call changes nothing";
  EXPECT_THAT(store.SetVersion(0, false, 0),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("Rewind")));
}

TEST(GroupStoreTest, AFinishedRunGivesNoLeases) {
  GroupStore store(Small());
  ASSERT_OK(store.SetVersion(5, true, 0));
  EXPECT_THAT(store.Grant("a", 10, 0), IsEmpty());
  EXPECT_THAT(store.WhyNoLease(), HasSubstr("finished"));
}

TEST(GroupStoreTest, OptionsThatCannotWorkAreNamed) {
  GroupStoreOptions options = Small();
  options.group_size = 1;
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("group_size is 1")));
  options = Small();
  options.admission.groups_per_step = 0;
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("groups_per_step is 0")));
}

}  // namespace
}  // namespace millrace
