#include "weight_sync/membership.h"

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const absl::Time kStart = absl::FromUnixSeconds(1'700'000'000);

Membership::Options TestOptions() {
  Membership::Options options;
  options.timeout = absl::Seconds(30);
  options.slow_after = absl::Seconds(20);
  return options;
}

uint64_t JoinAs(Membership* m, const std::string& name, absl::Time now = kStart) {
  return *m->Join({name, name + ":1", name + ":2"}, now);
}

std::vector<std::string> ChainNames(const Membership& m, int64_t version, absl::Time now = kStart) {
  std::vector<std::string> names;
  for (const Membership::Member* member : m.Chain(version, now)) names.push_back(member->name);
  return names;
}

TEST(Membership, JoiningAgainReplacesTheOldMembership) {
  Membership m(TestOptions());
  uint64_t first = JoinAs(&m, "a");
  uint64_t second = JoinAs(&m, "a");
  EXPECT_NE(first, second);
  EXPECT_EQ(m.members().size(), 1u);
  EXPECT_EQ(m.epoch(), 2u);
  EXPECT_TRUE(absl::IsNotFound(m.Heartbeat(first, -1, kStart)));
  EXPECT_TRUE(m.Heartbeat(second, -1, kStart).ok());
}

TEST(Membership, RefusesNamelessMembersAndMoreThanTheLimit) {
  Membership::Options options = TestOptions();
  options.max_members = 1;
  Membership m(options);
  EXPECT_TRUE(absl::IsInvalidArgument(m.Join({}, kStart).status()));
  JoinAs(&m, "a");
  EXPECT_TRUE(absl::IsResourceExhausted(m.Join({"b", "", ""}, kStart).status()));
  EXPECT_TRUE(m.Join({"a", "", ""}, kStart).ok());
}

TEST(Membership, RemovesTheSilentAndOnlyThem) {
  Membership m(TestOptions());
  uint64_t a = JoinAs(&m, "a");
  JoinAs(&m, "b");
  ASSERT_TRUE(m.Heartbeat(a, -1, kStart + absl::Seconds(20)).ok());
  EXPECT_THAT(m.Expire(kStart + absl::Seconds(31)), ElementsAre("b"));
  EXPECT_EQ(m.members().size(), 1u);
  EXPECT_EQ(m.epoch(), 3u);
}

TEST(Membership, StagesOnlyGoForward) {
  Membership m(TestOptions());
  uint64_t a = JoinAs(&m, "a");
  EXPECT_TRUE(absl::IsFailedPrecondition(m.Report(a, 1, SyncStage::kPrepared, "", kStart)));
  ASSERT_TRUE(m.Offer(a, 1, kStart).ok());
  EXPECT_TRUE(m.Report(a, 1, SyncStage::kTransferred, "", kStart).ok());
  EXPECT_TRUE(m.Report(a, 1, SyncStage::kTransferred, "", kStart).ok());
  absl::Status back = m.Report(a, 1, SyncStage::kPrepared, "", kStart);
  EXPECT_TRUE(absl::IsFailedPrecondition(back));
  EXPECT_THAT(std::string(back.message()), HasSubstr("'a' reports stage prepared"));
  EXPECT_TRUE(m.Report(a, 1, SyncStage::kActivated, "", kStart).ok());
  EXPECT_FALSE(m.Report(a, 1, SyncStage::kFailed, "late", kStart).ok());
  EXPECT_EQ(m.members().at(a).active_version, 1);
}

TEST(Membership, AFailedMemberMayBeOfferedTheVersionAgain) {
  Membership m(TestOptions());
  uint64_t a = JoinAs(&m, "a");
  ASSERT_TRUE(m.Offer(a, 1, kStart).ok());
  ASSERT_TRUE(m.Report(a, 1, SyncStage::kFailed, "disk", kStart).ok());
  EXPECT_EQ(m.members().at(a).last_error, "disk");
  EXPECT_TRUE(m.VersionsInUse().empty());
  ASSERT_TRUE(m.Offer(a, 1, kStart).ok());
  EXPECT_THAT(m.VersionsInUse(), ElementsAre(1));
  EXPECT_TRUE(m.Report(a, 1, SyncStage::kActivated, "", kStart).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(m.Offer(a, 1, kStart)));
}

TEST(Membership, AHeartbeatMakesUpForALostReport) {
  Membership m(TestOptions());
  uint64_t a = JoinAs(&m, "a");
  ASSERT_TRUE(m.Offer(a, 4, kStart).ok());
  ASSERT_TRUE(m.Heartbeat(a, 4, kStart).ok());
  EXPECT_EQ(m.members().at(a).stage, SyncStage::kActivated);
  EXPECT_TRUE(m.VersionsInUse().empty());
}

TEST(RelayPlan, AMemberPullsFromTheOnesBeforeItNearestFirstAndTheLearnerLast) {
  EXPECT_THAT(PlanSources({}, "learner", 2), ElementsAre("learner"));
  EXPECT_THAT(PlanSources({"a", "b", "c"}, "learner", 2), ElementsAre("c", "b", "learner"));
  EXPECT_THAT(PlanSources({"a", "a", ""}, "learner", 2), ElementsAre("a", "learner"));
}

TEST(RelayPlan, LeavesOutWhoFailedWentOnOrIsSlow) {
  Membership m(TestOptions());
  uint64_t a = JoinAs(&m, "a"), b = JoinAs(&m, "b"), c = JoinAs(&m, "c"), d = JoinAs(&m, "d");
  for (uint64_t id : {a, b, c, d}) ASSERT_TRUE(m.Offer(id, 1, kStart).ok());
  EXPECT_THAT(ChainNames(m, 1), ElementsAre("a", "b", "c", "d"));
  ASSERT_TRUE(m.Report(a, 1, SyncStage::kActivated, "", kStart).ok());
  ASSERT_TRUE(m.Report(b, 1, SyncStage::kFailed, "x", kStart).ok());
  ASSERT_TRUE(m.Report(c, 1, SyncStage::kPrepared, "", kStart).ok());
  EXPECT_THAT(ChainNames(m, 1), ElementsAre("a", "c", "d"));
  ASSERT_TRUE(m.Offer(d, 2, kStart).ok());
  EXPECT_THAT(ChainNames(m, 1), ElementsAre("a", "c"));
  EXPECT_THAT(ChainNames(m, 1, kStart + absl::Seconds(21)), ElementsAre("a"));
  ASSERT_TRUE(m.Leave(a).ok());
  EXPECT_THAT(ChainNames(m, 1), ElementsAre("c"));
}

TEST(RelayPlan, LeavesOutWhoDroppedItsBytesUntilTheNextVersion) {
  Membership m(TestOptions());
  uint64_t a = JoinAs(&m, "a"), b = JoinAs(&m, "b");
  for (uint64_t id : {a, b}) ASSERT_TRUE(m.Offer(id, 1, kStart).ok());
  m.Dropped(a, 1);
  ASSERT_TRUE(m.Report(a, 1, SyncStage::kActivated, "", kStart).ok());
  EXPECT_THAT(ChainNames(m, 1), ElementsAre("b"));
  m.Dropped(b, 0);   // not what was offered to it
  m.Dropped(77, 1);  // a stranger
  EXPECT_THAT(ChainNames(m, 1), ElementsAre("b"));
  ASSERT_TRUE(m.Offer(a, 2, kStart).ok());
  EXPECT_THAT(ChainNames(m, 2), ElementsAre("a"));
}

// Random members that join, leave, crash, lag and report; after each step the invariants hold.
TEST(Membership, TenThousandRandomStepsKeepTheInvariants) {
  const uint64_t seed = 987654321;
  std::mt19937_64 random(seed);
  Membership m(TestOptions());
  absl::Time now = kStart;
  int64_t version = 0;
  uint64_t highest_id = 0;
  std::set<uint64_t> dead;
  std::map<uint64_t, int64_t> active_before;
  auto pick = [&]() -> uint64_t {
    if (!dead.empty() && random() % 10 == 0) return *dead.begin();
    if (m.members().empty()) return 999'999'999;
    return std::next(m.members().begin(), static_cast<long>(random() % m.members().size()))->first;
  };
  for (int step = 0; step < 10'000; ++step) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " step " << step);
    std::set<uint64_t> before;
    for (const auto& [id, member] : m.members()) before.insert(id);
    const uint64_t epoch = m.epoch();
    now += absl::Milliseconds(random() % 3000);
    const uint64_t id = pick();
    const bool alive = m.members().count(id) > 0;
    absl::Status status;
    switch (random() % 8) {
      case 0: {
        absl::StatusOr<uint64_t> joined =
            m.Join({absl::StrCat("m", random() % 12), "c", absl::StrCat("b", random() % 12)}, now);
        ASSERT_TRUE(joined.ok());
        ASSERT_GT(*joined, highest_id);
        highest_id = *joined;
        break;
      }
      case 1:
        if (random() % 3 == 0) {
          ASSERT_EQ(m.Leave(id).ok(), alive);
        }
        break;
      case 2:
        m.Expire(now);
        for (const auto& [other, member] : m.members()) {
          ASSERT_LE(now - member.last_heard, absl::Seconds(30));
        }
        break;
      case 3:
        ++version;
        break;
      case 4:
      case 5:
        status = m.Offer(id, version, now);
        ASSERT_EQ(absl::IsNotFound(status), !alive);
        break;
      case 6:
        status = m.Report(id, version - static_cast<int64_t>(random() % 2),
                          static_cast<SyncStage>(random() % 6), "e", now);
        ASSERT_EQ(absl::IsNotFound(status), !alive);
        break;
      case 7:
        ASSERT_EQ(m.Heartbeat(id, static_cast<int64_t>(random() % (version + 1)) - 1, now).ok(),
                  alive);
        break;
    }
    std::set<uint64_t> after;
    std::set<std::string> names;
    for (const auto& [other, member] : m.members()) {
      after.insert(other);
      ASSERT_TRUE(names.insert(member.name).second) << member.name;
      ASSERT_LE(member.active_version, version);
      if (active_before.count(other) > 0) {
        ASSERT_GE(member.active_version, active_before[other]);
      }
      active_before[other] = member.active_version;
    }
    for (uint64_t gone : before) {
      if (after.count(gone) == 0) dead.insert(gone);
    }
    ASSERT_EQ(m.epoch() > epoch, before != after);
    for (int64_t v = version - 2; v <= version; ++v) {
      std::set<uint64_t> in_chain;
      for (const Membership::Member* member : m.Chain(v, now)) {
        ASSERT_EQ(after.count(member->id), 1u);
        ASSERT_TRUE(in_chain.insert(member->id).second);
        ASSERT_FALSE(member->offered_version == v && member->stage == SyncStage::kFailed &&
                     member->active_version != v);
      }
    }
    for (int64_t v : m.VersionsInUse()) ASSERT_LE(v, version);
  }
}

}  // namespace
}  // namespace millrace
