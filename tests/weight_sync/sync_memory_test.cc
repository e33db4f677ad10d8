// How many copies of a version there are, and that none is written while somebody reads it.
#include <atomic>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/weight_sync/sync_fixture.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SyncMemory : public BothTransports {};
INSTANTIATE_TEST_SUITE_P(Transports, SyncMemory, testing::Bool(), TransportName);

TEST_P(SyncMemory, WhatAMemberStillTakesUpIsNotWrittenOver) {
  StartPublisher();
  Member member;
  absl::Notification entered, go;
  member.receiver.set_on_activate([&](int64_t version) {  // before it looks at a byte
    if (version == 0) {
      entered.Notify();
      go.WaitForNotificationWithTimeout(kLong);
    }
    return absl::OkStatus();
  });
  Start(&member, MemberOptions("m"));
  std::vector<FakeWeights> weights;
  for (int64_t v = 0; v < 4; ++v) weights.emplace_back(v);
  ASSERT_TRUE(publisher_->Publish(0, weights[0].spans()).ok());
  ASSERT_TRUE(entered.WaitForNotificationWithTimeout(kLong));
  for (int64_t v = 1; v < 4; ++v) ASSERT_TRUE(publisher_->Publish(v, weights[v].spans()).ok());
  // What it makes active now is kept as it was by the one hook that can see it.
  std::atomic<bool> first_was_whole{false};
  member.receiver.set_on_activate([&](int64_t version) {
    if (version == 3) first_was_whole = member.receiver.Has(weights[0]);
    return absl::OkStatus();
  });
  go.Notify();
  ASSERT_TRUE(member.subscriber->WaitForVersion(3, kLong).ok());
  EXPECT_TRUE(first_was_whole);
  EXPECT_TRUE(member.receiver.Has(weights[3]));
  EXPECT_THAT(member.receiver.activated(), ElementsAre(0, 3));
}

TEST_P(SyncMemory, AFailedActivationGivesTheMemoryBack) {
  const size_t before = VersionMappings().size();
  StartPublisher();
  Member member;
  std::atomic<int> tries{0};
  absl::Notification go;
  member.receiver.set_on_prepare([&](int64_t) {  // before it takes any memory
    if (++tries > 1) go.WaitForNotificationWithTimeout(kLong);
    return absl::OkStatus();
  });
  member.receiver.set_on_activate([&](int64_t) {
    return tries == 1 ? absl::ResourceExhaustedError("full") : absl::OkStatus();
  });
  Start(&member, MemberOptions("m"));
  FakeWeights weights(1);
  ASSERT_TRUE(publisher_->Publish(0, weights.spans()).ok());
  EXPECT_THAT(AwaitError("full"), HasSubstr("full"));
  // The learner's, and by TCP the member's own.
  EXPECT_EQ(VersionMappings().size(), before + (same_host_ ? 1 : 2));
  go.Notify();
  ASSERT_TRUE(member.subscriber->WaitForVersion(0, kLong).ok());
  EXPECT_TRUE(member.receiver.Has(weights));
}

TEST_P(SyncMemory, TheLearnerWritesTheNextVersionWhereTheLastOneWas) {
  const size_t before = MappedVersions();
  StartPublisher();
  Member member;
  Start(&member, MemberOptions("m"));
  // By TCP the member has memory of its own, for the version it serves and the one that arrives.
  // How soon the learner sees that a mapping has gone is the kernel's affair: the version after
  // that is in the same memory.
  const size_t most = same_host_ ? 1 : 3;
  size_t versions = 0;
  const absl::Time end = Clock::Real()->Now() + kLong;
  for (int64_t v = 0; Clock::Real()->Now() < end && !(v > 5 && versions == most); ++v) {
    FakeWeights weights(v);
    ASSERT_TRUE(publisher_->Publish(v, weights.spans()).ok());
    ASSERT_TRUE(publisher_->WaitActivated(v, 1, kLong).ok());
    ASSERT_TRUE(member.receiver.Has(weights));
    versions = MappedVersions() - before;
  }
  EXPECT_EQ(versions, most);
  // Who joins later finds the newest one.
  Member late;
  Start(&late, MemberOptions("late"));
  ASSERT_TRUE(late.subscriber->WaitForVersion(publisher_->version(), kLong).ok());
}

}  // namespace
}  // namespace millrace
