// A publisher and its subscribers in one process, over loopback.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/weight_sync/sync_fixture.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Transports, BothTransports, testing::Bool(), TransportName);

TEST_P(BothTransports, EveryMemberGetsEveryByteOfEveryVersion) {
  StartPublisher();
  std::vector<Member> members(3);
  for (int i = 0; i < 3; ++i) Start(&members[i], MemberOptions(absl::StrCat("m", i)));
  for (int64_t version = 0; version < 4; ++version) {
    FakeWeights weights(100 + version);
    ASSERT_TRUE(publisher_->Publish(version, weights.spans()).ok());
    absl::Status waited = publisher_->WaitActivated(version, 3, kLong);
    ASSERT_TRUE(waited.ok()) << waited;
    for (Member& m : members) {
      EXPECT_TRUE(m.receiver.Has(weights)) << version;
      EXPECT_EQ(m.subscriber->active_version(), version);
    }
  }
  std::vector<MemberInfo> infos = publisher_->Members();
  ASSERT_EQ(infos.size(), 3u);
  for (const MemberInfo& info : infos) {
    EXPECT_EQ(info.active_version, 3);
    EXPECT_EQ(info.stage, SyncStage::kActivated);
    EXPECT_EQ(info.last_error, "");
    EXPECT_EQ(info.control_address, info.member + ":1");
  }
}

TEST_P(BothTransports, TheCallerMayChangeItsBytesAfterPublish) {
  StartPublisher();
  std::vector<std::byte> bytes(100'000, std::byte{7});
  std::vector<NamedSpan> spans = {{"w", "U8", {100'000}, bytes}};
  ASSERT_TRUE(publisher_->Publish(0, spans).ok());
  std::fill(bytes.begin(), bytes.end(), std::byte{9});
  Member member;
  Start(&member, MemberOptions("m"));
  ASSERT_TRUE(member.subscriber->WaitForVersion(0, kLong).ok());
  std::fill(bytes.begin(), bytes.end(), std::byte{7});
  EXPECT_TRUE(member.receiver.HasBytes("w", bytes));
}

TEST_F(WeightSync, TheRelaySparesTheLearner) {
  StartPublisher();
  std::vector<Member> members(3);
  for (int i = 0; i < 3; ++i) {
    Subscriber::Options options = MemberOptions(absl::StrCat("m", i));
    options.source_patience = kLong;  // however loaded the machine is, nobody leaves its peer
    Start(&members[i], options);
  }
  AwaitMembers(3);
  FakeWeights weights(5, 20);
  ASSERT_TRUE(publisher_->Publish(0, weights.spans()).ok());
  ASSERT_TRUE(publisher_->WaitActivated(0, 3, kLong).ok());
  for (Member& m : members) EXPECT_TRUE(m.receiver.Has(weights));
  const Counter& sent = learner_metrics_->AddCounter(
      "millrace_weight_sync_bytes_total", "",
      {{"direction", "sent"}, {"source", "learner"}, {"transport", "tcp"}});
  const auto bytes = static_cast<double>(weights.bytes());
  // What arrived is counted a moment later.
  const absl::Time end = Clock::Real()->Now() + kLong;
  while (sent.Value() < bytes && Clock::Real()->Now() < end) std::this_thread::yield();
  // One copy, and not three.
  EXPECT_GE(sent.Value(), bytes);
  EXPECT_LT(sent.Value(), 1.1 * bytes);
}

TEST_F(WeightSync, ALateMemberGetsTheNewestVersionOnly) {
  StartPublisher();
  std::vector<FakeWeights> weights;
  for (int64_t v = 0; v < 3; ++v) {
    weights.emplace_back(v);
    ASSERT_TRUE(publisher_->Publish(v, weights.back().spans()).ok());
  }
  Member late;
  Start(&late, MemberOptions("late"));
  ASSERT_TRUE(late.subscriber->WaitForVersion(2, kLong).ok());
  EXPECT_TRUE(late.receiver.Has(weights[2]));
  EXPECT_THAT(late.receiver.activated(), ElementsAre(2));
}

TEST_F(WeightSync, ASlowMemberSkipsSupersededVersionsAndItsOwnStaysWhole) {
  StartPublisher();
  Member slow;
  absl::Notification entered, go;
  slow.receiver.set_on_prepare([&](int64_t version) {
    if (version == 0) {
      entered.Notify();
      go.WaitForNotificationWithTimeout(kLong);
    }
    return absl::OkStatus();
  });
  Start(&slow, MemberOptions("slow"));
  std::vector<FakeWeights> weights;
  for (int64_t v = 0; v < 4; ++v) weights.emplace_back(v);
  ASSERT_TRUE(publisher_->Publish(0, weights[0].spans()).ok());
  ASSERT_TRUE(entered.WaitForNotificationWithTimeout(kLong));
  // Three more while the member is still at the first, whose bytes it has yet to fetch.
  for (int64_t v = 1; v < 4; ++v) ASSERT_TRUE(publisher_->Publish(v, weights[v].spans()).ok());
  go.Notify();
  ASSERT_TRUE(slow.subscriber->WaitForVersion(3, kLong).ok());
  EXPECT_THAT(slow.receiver.activated(), ElementsAre(0, 3));
  EXPECT_TRUE(slow.receiver.Has(weights[3]));
}

TEST_F(WeightSync, AMemberThatRefusesTheShapesKeepsItsVersionAndIsNamed) {
  StartPublisher();
  Member member;
  FakeWeights first(1), second(2), third(3);
  Start(&member, MemberOptions("picky"));
  ASSERT_TRUE(publisher_->Publish(0, first.spans()).ok());
  ASSERT_TRUE(member.subscriber->WaitForVersion(0, kLong).ok());
  member.receiver.set_on_prepare([](int64_t version) {
    return version == 1 ? absl::InvalidArgumentError("tensor 'w' has shape [2], want [3]")
                        : absl::OkStatus();
  });
  ASSERT_TRUE(publisher_->Publish(1, second.spans()).ok());
  EXPECT_THAT(AwaitError("want [3]"),
              AllOf(HasSubstr("member 'picky'"), HasSubstr("prepare of version 1")));
  EXPECT_EQ(member.subscriber->active_version(), 0);
  EXPECT_TRUE(member.receiver.Has(first));
  absl::Status waited = publisher_->WaitActivated(1, 1, absl::Milliseconds(10));
  EXPECT_TRUE(absl::IsDeadlineExceeded(waited));
  EXPECT_THAT(std::string(waited.message()),
              AllOf(HasSubstr("1 members to activate version 1"), HasSubstr("'picky' has 0"),
                    HasSubstr("want [3]")));
  ASSERT_TRUE(publisher_->Publish(2, third.spans()).ok());
  ASSERT_TRUE(member.subscriber->WaitForVersion(2, kLong).ok());
  EXPECT_TRUE(member.receiver.Has(third));
}

TEST_F(WeightSync, AFailedActivationIsTriedAgain) {
  StartPublisher();
  Member member;
  std::atomic<int> tries{0};
  member.receiver.set_on_activate([&](int64_t) {
    return tries++ == 0 ? absl::DeadlineExceededError("the engine is busy") : absl::OkStatus();
  });
  Start(&member, MemberOptions("m"));
  FakeWeights weights(1);
  ASSERT_TRUE(publisher_->Publish(0, weights.spans()).ok());
  ASSERT_TRUE(member.subscriber->WaitForVersion(0, kLong).ok());
  EXPECT_TRUE(member.receiver.Has(weights));
  EXPECT_EQ(tries.load(), 2);
}

TEST_F(WeightSync, MembersJoinARestartedLearnerAndGoOn) {
  StartPublisher();
  const std::string address = publisher_->control_address();
  std::vector<Member> members(2);
  for (int i = 0; i < 2; ++i) Start(&members[i], MemberOptions(absl::StrCat("m", i)));
  FakeWeights first(1), second(2);
  ASSERT_TRUE(publisher_->Publish(3, first.spans()).ok());
  ASSERT_TRUE(publisher_->WaitActivated(3, 2, kLong).ok());
  publisher_.reset();
  Publisher::Options options;
  options.listen = address;
  StartPublisher(options);
  ASSERT_TRUE(publisher_->Publish(4, second.spans()).ok());
  absl::Status waited = publisher_->WaitActivated(4, 2, kLong);
  ASSERT_TRUE(waited.ok()) << waited;
  for (Member& m : members) EXPECT_TRUE(m.receiver.Has(second));
}

TEST_F(WeightSync, ADeadPeerInTheChainDoesNotStopTheOthers) {
  StartPublisher();
  std::vector<Member> members(3);
  Start(&members[0], MemberOptions("m0"));
  // m1 offers an address where nobody listens, as if its process had just died.
  Subscriber::Options dead = MemberOptions("m1");
  dead.advertise = "127.0.0.2";
  Start(&members[1], dead);
  Start(&members[2], MemberOptions("m2"));
  AwaitMembers(3);
  FakeWeights weights(8, 20);
  ASSERT_TRUE(publisher_->Publish(0, weights.spans()).ok());
  absl::Status waited = publisher_->WaitActivated(0, 3, kLong);
  ASSERT_TRUE(waited.ok()) << waited;
  for (Member& m : members) EXPECT_TRUE(m.receiver.Has(weights));
}

TEST_F(WeightSync, MembersLeaveWhenTheyStop) {
  StartPublisher();
  {
    Member member;
    Start(&member, MemberOptions("m"));
    ASSERT_TRUE(publisher_->Publish(0, FakeWeights(1).spans()).ok());
    ASSERT_TRUE(member.subscriber->WaitForVersion(0, kLong).ok());
  }
  AwaitMembers(0);
}

TEST_F(WeightSync, StrangersAreRefusedAndToldWhy) {
  Publisher::Options options;
  options.token = "secret";
  StartPublisher(options);
  FakeWeights weights(1);
  ASSERT_TRUE(publisher_->Publish(0, weights.spans()).ok());
  Member no_token, other_run, friendly;
  Start(&no_token, MemberOptions("no-token"));
  Subscriber::Options other = MemberOptions("other-run");
  other.token = "secret";
  other.run = "another";
  Start(&other_run, other);
  Subscriber::Options good = MemberOptions("good");
  good.token = "secret";
  Start(&friendly, good);
  ASSERT_TRUE(friendly.subscriber->WaitForVersion(0, kLong).ok());
  auto await_health = [](Subscriber* s) {
    absl::Time end = Clock::Real()->Now() + kLong;
    while (s->health().ok() && Clock::Real()->Now() < end) {
      s->WaitForVersion(0, absl::Milliseconds(1)).IgnoreError();
    }
    return s->health();
  };
  absl::Status refused = await_health(no_token.subscriber.get());
  EXPECT_TRUE(absl::IsPermissionDenied(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("wrong weight_sync.token"));
  refused = await_health(other_run.subscriber.get());
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("run 'another'"), HasSubstr("'run'")));
  EXPECT_EQ(publisher_->Members().size(), 1u);
}

TEST_F(WeightSync, DeadlinesSayWhoWaitedForWhat) {
  StartPublisher();
  Member member;
  Start(&member, MemberOptions("m"));
  AwaitMembers(1);
  absl::Status status = member.subscriber->WaitForVersion(5, absl::Milliseconds(10));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("member 'm'"), HasSubstr("version 5"),
                                                   HasSubstr("active is -1"), HasSubstr("10ms")));
  status = publisher_->WaitActivated(5, 2, absl::Milliseconds(10));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("10ms"), HasSubstr("2 members"), HasSubstr("version 5"),
                    HasSubstr("'m' has -1")));
}

TEST_F(WeightSync, AnUnreachableLearnerShowsInHealth) {
  Member member;
  Subscriber::Options options;
  options.run = "run";
  options.member = "m";
  options.publisher = "127.0.0.1:1";
  options.bucket_listen = "127.0.0.1:0";
  options.retry_for = absl::ZeroDuration();
  Start(&member, options);
  absl::Status health = member.subscriber->health();
  EXPECT_TRUE(absl::IsUnavailable(health));
  EXPECT_THAT(std::string(health.message()), HasSubstr("127.0.0.1:1"));
}

TEST_F(WeightSync, FinishReachesMembersAndWakesThoseThatWait) {
  StartPublisher();
  Member member;
  Start(&member, MemberOptions("m"));
  AwaitMembers(1);
  publisher_->Finish();
  absl::Status status = member.subscriber->WaitForVersion(1, kLong);
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_TRUE(member.subscriber->finished());
}

TEST_F(WeightSync, VersionsMustGrow) {
  StartPublisher();
  FakeWeights weights(1);
  EXPECT_EQ(publisher_->version(), -1);
  ASSERT_TRUE(publisher_->Publish(3, weights.spans()).ok());
  EXPECT_EQ(publisher_->version(), 3);
  absl::Status status = publisher_->Publish(3, weights.spans());
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 3 must be above the last one, 3"));
}

}  // namespace
}  // namespace millrace
