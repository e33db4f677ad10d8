// Payloads of old groups that may leave the store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "buffer/group_store.h"
#include "tests/buffer/small_store.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using millrace::testing::Fill;
using millrace::testing::IsOkAndHolds;
using millrace::testing::Small;
using millrace::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// One dropped and two trained groups a step; what goes, by the step after which it does.
std::map<uint64_t, std::vector<uint64_t>> PrunedByStep(GroupStore& store, uint64_t steps) {
  std::map<uint64_t, std::vector<uint64_t>> pruned;
  EXPECT_OK(store.SetVersion(0, false, 0));
  for (uint64_t step = 1; step <= steps; ++step) {
    const auto version = static_cast<int64_t>(step);
    const std::vector<LeaseGrant> leases = store.Grant("a", 3, 0);
    EXPECT_THAT(leases, SizeIs(3));
    for (size_t i = 0; i < leases.size(); ++i) Fill(store, leases[i], i > 0, version - 1);
    EXPECT_THAT(store.TakeBatch(step, version - 1, 0), IsOkAndHolds(SizeIs(2)));
    EXPECT_OK(store.SetVersion(version, false, 0));
    EXPECT_THAT(store.Commit(step, 0), IsOkAndHolds(2u));
    // What a step committed is forgotten, and so prunable, once its rows are written.
    for (int i = 0; i < 2; ++i) {
      for (const uint64_t id : store.TakeDirty().prune) pruned[step].push_back(id);
    }
    std::sort(pruned[step].begin(), pruned[step].end());
  }
  return pruned;
}

TEST(GroupStoreTest, PayloadsOfEndedGroupsGoWhenTheyAreOutOfReach) {
  GroupStoreOptions options = Small();
  for (const uint64_t keep : {1, 64, 67}) {
    SCOPED_TRACE(keep);
    options.keep_steps = keep;
    GroupStore store(options);
    const uint64_t last = std::max<uint64_t>(keep, 64) + 3;
    const auto pruned = PrunedByStep(store, last);
    for (const auto& [step, groups] : pruned) {
      if (step + 3 < last) {
        EXPECT_THAT(groups, IsEmpty()) << step;
      }
    }
    // Of step 1 the two it trained, and what was dropped until it had its batch.
    std::vector<uint64_t> all;
    for (const auto& [step, groups] : pruned) all.insert(all.end(), groups.begin(), groups.end());
    EXPECT_THAT(all, ::testing::UnorderedElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
    // None of them can be asked for again.
    EXPECT_THAT(store.Rewind(last - 65, 0), StatusIs(absl::StatusCode::kFailedPrecondition));
    EXPECT_OK(store.Rewind(last - 64, 0));
  }
  options.keep_steps = 0;
  GroupStore store(options);
  for (const auto& [step, groups] : PrunedByStep(store, 70)) EXPECT_THAT(groups, IsEmpty()) << step;
}

TEST(GroupStoreTest, APrunedGroupIsOutOfReachWhateverTheCommittedStepIs) {
  GroupStore store(Small());
  GroupStoreMeta meta;
  meta.last_step = meta.committed_step = 40;  // after a rewind
  store.RestoreMeta(meta);
  for (uint64_t id = 1; id <= 2; ++id) {
    GroupRow row;
    row.group_id = id;
    row.state = GroupState::kCommitted;
    row.group_size = 2;
    row.step = id;
    std::vector<MemberSummary> members(2);
    members[1].index = 1;
    for (MemberSummary& member : members) member.pruned = id == 1;
    store.RestoreGroup(row, members, 0);
  }
  EXPECT_THAT(store.Rewind(0, 0), StatusIs(absl::StatusCode::kFailedPrecondition,
                                           HasSubstr("cannot rewind to step 0")));
  EXPECT_THAT(store.Rewind(1, 0), IsOkAndHolds(1u));
}

}  // namespace
}  // namespace millrace
