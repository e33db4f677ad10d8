#include "buffer/buffer_store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/buffer/builders.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using millrace::testing::MakeTrajectory;
using millrace::testing::StatusIs;
using millrace::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

GroupStoreOptions Groups() {
  GroupStoreOptions options;
  options.task = "sums";
  options.group_size = 2;
  options.admission = {2, 1, true, 4};
  return options;
}

// A store and the group states on top of it, written through.
struct Pair {
  Metrics metrics;
  GroupStore groups{Groups()};
  std::unique_ptr<BufferStore> store;
  BufferStore::Totals totals;

  explicit Pair(const std::string& path, bool sync = false, int64_t max_pages = 0) {
    absl::StatusOr<std::unique_ptr<BufferStore>> opened =
        BufferStore::Open({path, "run-a", sync, max_pages, Clock::Real(), &metrics});
    EXPECT_OK(opened);
    store = *std::move(opened);
    absl::StatusOr<BufferStore::Totals> loaded = store->Load(&groups, 0);
    EXPECT_OK(loaded);
    totals = *loaded;
  }

  absl::Status Write(StoreChange change) {
    absl::Notification written;
    absl::Status result;
    store->Write(std::move(change), [&](absl::Status status) {
      result = std::move(status);
      written.Notify();
    });
    written.WaitForNotification();
    return result;
  }
  absl::Status Sync() {
    StoreChange change;
    change.groups = groups.TakeDirty();
    change.meta = groups.meta();
    return Write(std::move(change));
  }
  absl::Status Push(const LeaseGrant& lease, uint32_t index, double reward) {
    EXPECT_EQ(groups.Reserve({lease.group_id, index, lease.attempt, lease.problem_id}).kind,
              PushVerdict::kAccept);
    Trajectory t = MakeTrajectory({"run-a", lease.group_id, index, lease.attempt}, reward);
    t.problem_id = lease.problem_id;
    StoreChange change;
    change.trajectory = MakeTrajectoryRow(std::move(t));
    const MemberSummary member = change.trajectory->summary;
    const absl::Status status = Write(std::move(change));
    if (status.ok()) groups.Confirm(lease.group_id, member, 0);
    return status;
  }
};

TEST(BufferStoreTest, ATrajectoryComesBackWhole) {
  TempDir dir;
  Pair pair(dir.File("s.sqlite"));
  Trajectory t = MakeTrajectory({"run-a", 3, 1, 2}, 0.1, 5);
  t.status = TrajectoryStatus::kTruncated;
  t.status_detail = "48 tokens";
  t.reward_components = {{"exact", 0.1}, {"format \"x\"", -1e-300}};
  t.problem_id = ~0ULL;
  t.completion_text = std::string("with\0zero", 9);
  StoreChange change;
  change.trajectory = MakeTrajectoryRow(t);
  ASSERT_OK(pair.Write(std::move(change)));
  ASSERT_OK_AND_ASSIGN(const std::vector<Trajectory> group, pair.store->ReadGroup(3));
  EXPECT_THAT(group, ElementsAre(t));
}

TEST(BufferStoreTest, StateComesBackAfterAnyAcknowledgedWrite) {
  TempDir dir;
  Pair live(dir.File("s.sqlite"));
  int copies = 0;
  // What a crash leaves is what the files hold after the write: reopen a copy of them.
  const auto check = [&] {
    const std::string copy = dir.File("copy" + std::to_string(copies++));
    for (const char* suffix : {"", "-wal"}) {
      std::filesystem::copy_file(dir.File("s.sqlite") + suffix, copy + suffix);
    }
    Pair reopened(copy);
    const GroupCounts a = live.groups.Counts(), b = reopened.groups.Counts();
    EXPECT_EQ(a.in_flight.leased, b.in_flight.leased);
    EXPECT_EQ(a.in_flight.ready, b.in_flight.ready);
    EXPECT_EQ(a.in_flight.assigned, b.in_flight.assigned);
    EXPECT_EQ(a.assigned, b.assigned);
    EXPECT_EQ(a.committed, b.committed);
    EXPECT_EQ(a.dropped, b.dropped);
    EXPECT_EQ(a.dropped_tokens, b.dropped_tokens);
    EXPECT_EQ(live.groups.meta().version, reopened.groups.meta().version);
    EXPECT_EQ(live.groups.meta().next_group_id, reopened.groups.meta().next_group_id);
    EXPECT_EQ(live.groups.meta().last_step, reopened.groups.meta().last_step);
    EXPECT_EQ(live.groups.meta().pending_rewind, reopened.groups.meta().pending_rewind);
  };
  ASSERT_OK(live.groups.SetVersion(0, false, 0));
  ASSERT_OK(live.Sync());
  check();
  const std::vector<LeaseGrant> leases = live.groups.Grant("a", 4, 0);
  ASSERT_OK(live.Sync());
  check();
  for (const LeaseGrant& lease : leases) {
    for (uint32_t i = 0; i < 2; ++i) {
      ASSERT_OK(live.Push(lease, i, lease.group_id == 2 ? 1 : i));
      check();
    }
  }
  ASSERT_OK(live.Sync());
  check();
  ASSERT_OK_AND_ASSIGN(const auto batch, live.groups.TakeBatch(1, 0, 0));
  EXPECT_THAT(batch, ElementsAre(1, 3));
  ASSERT_OK(live.Sync());
  check();
  ASSERT_OK(live.groups.Rewind(0, 0));
  ASSERT_OK(live.Sync());
  check();
  ASSERT_OK(live.groups.SetVersion(1, false, 0));
  ASSERT_OK_AND_ASSIGN(const auto again, live.groups.TakeBatch(1, 1, 0));
  EXPECT_EQ(again, batch);
  ASSERT_OK(live.groups.Commit(1, 0));
  ASSERT_OK(live.Sync());
  check();
  Pair reopened(dir.File("copy" + std::to_string(copies - 1)));
  EXPECT_EQ(reopened.totals.trajectories, 8);
  EXPECT_EQ(reopened.totals.sampled_tokens, 8 * 8);
}

// The child pushes until it is killed, and tells over a pipe what was acknowledged.
void PushUntilKilled(const std::string& path, int out) {
  Pair pair(path, true);
  pair.groups.SetVersion(0, false, 0).IgnoreError();
  for (uint64_t id = 1;; ++id) {
    if (!pair.groups.CanGrant()) return;
    const LeaseGrant lease = pair.groups.Grant("a", 1, 0)[0];
    if (!pair.Sync().ok()) return;
    for (uint32_t i = 0; i < 2; ++i) {
      // Equal rewards: the group is dropped and makes room for the next.
      if (!pair.Push(lease, i, 1).ok()) return;
      const uint64_t acked = lease.group_id * 2 + i;
      if (write(out, &acked, sizeof(acked)) != sizeof(acked)) return;
    }
  }
}

TEST(BufferStoreTest, AKilledProcessLosesNothingThatWasAcknowledged) {
  TempDir dir;
  const std::string path = dir.File("s.sqlite");
  size_t acked = 0;
  for (int round = 0; round < 3; ++round) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      PushUntilKilled(path, ends[1]);
      _exit(1);
    }
    close(ends[1]);
    uint64_t message = 0;
    for (int i = 0; i < 15 + 7 * round; ++i) {
      ASSERT_EQ(read(ends[0], &message, sizeof(message)), static_cast<ssize_t>(sizeof(message)));
      ++acked;
    }
    kill(child, SIGKILL);
    while (read(ends[0], &message, sizeof(message)) == sizeof(message)) ++acked;
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
  }
  Pair reopened(path);
  EXPECT_GE(reopened.totals.trajectories, static_cast<int64_t>(acked));
  // At most one was written and not yet told, in each round.
  EXPECT_LE(reopened.totals.trajectories, static_cast<int64_t>(acked + 3));
}

TEST(BufferStoreTest, AStoreOfAnotherRunIsRefused) {
  TempDir dir;
  { Pair pair(dir.File("s.sqlite")); }
  Metrics metrics;
  EXPECT_THAT(BufferStore::Open({dir.File("s.sqlite"), "run-b", false, 0, Clock::Real(), &metrics}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("belongs to run \"run-a\", not to run \"run-b\"")));
}

TEST(BufferStoreTest, ANewerSchemaIsRefused) {
  TempDir dir;
  { Pair pair(dir.File("s.sqlite")); }
  {
    ASSERT_OK_AND_ASSIGN(SqlDatabase database, SqlDatabase::Open(dir.File("s.sqlite"), false));
    ASSERT_OK(database.Execute("PRAGMA user_version=9"));
  }
  Metrics metrics;
  EXPECT_THAT(BufferStore::Open({dir.File("s.sqlite"), "run-a", false, 0, Clock::Real(), &metrics}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("schema version 9")));
}

TEST(BufferStoreTest, ASecondBufferOnTheSameStoreIsRefused) {
  TempDir dir;
  Pair pair(dir.File("s.sqlite"));
  Metrics metrics;
  EXPECT_THAT(BufferStore::Open({dir.File("s.sqlite"), "run-a", false, 0, Clock::Real(), &metrics}),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("in use by another buffer (process " + std::to_string(getpid()))));
}

TEST(BufferStoreTest, AFileThatIsNoStoreIsRefused) {
  TempDir dir;
  std::ofstream(dir.File("s.sqlite")) << std::string(5000, 'x');
  Metrics metrics;
  EXPECT_THAT(BufferStore::Open({dir.File("s.sqlite"), "run-a", false, 0, Clock::Real(), &metrics}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("s.sqlite")));
}

TEST(BufferStoreTest, AMissingFolderIsNamed) {
  Metrics metrics;
  EXPECT_THAT(
      BufferStore::Open({"/nonexistent/s.sqlite", "run-a", false, 0, Clock::Real(), &metrics}),
      StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("/nonexistent/s.sqlite")));
}

TEST(BufferStoreTest, AFullDiskIsAnErrorAndNotAnAcknowledgement) {
  TempDir dir;
  Pair pair(dir.File("s.sqlite"), false, 24);
  ASSERT_OK(pair.groups.SetVersion(0, false, 0));
  absl::Status status;
  int64_t stored = 0;
  while (status.ok() && stored < 1000) {
    StoreChange change;
    change.trajectory = MakeTrajectoryRow(
        MakeTrajectory({"run-a", static_cast<uint64_t>(stored + 1), 0, 0}, 1, 0, 2000));
    status = pair.Write(std::move(change));
    if (status.ok()) ++stored;
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("s.sqlite")));
  EXPECT_FALSE(pair.store->health().ok());
  pair.store.reset();
  Pair reopened(dir.File("s.sqlite"));
  ASSERT_OK_AND_ASSIGN(const auto last, reopened.store->ReadGroup(static_cast<uint64_t>(stored)));
  EXPECT_THAT(last, SizeIs(1));
  ASSERT_OK_AND_ASSIGN(const auto lost,
                       reopened.store->ReadGroup(static_cast<uint64_t>(stored + 1)));
  EXPECT_THAT(lost, SizeIs(0));
}

TEST(BufferStoreTest, ACorruptPayloadNamesTheGroupAndTheIndex) {
  TempDir dir;
  Pair pair(dir.File("s.sqlite"));
  StoreChange change;
  change.trajectory = MakeTrajectoryRow(MakeTrajectory({"run-a", 3, 1, 0}, 1));
  change.trajectory->payload[20] ^= 1;
  ASSERT_OK(pair.Write(std::move(change)));
  EXPECT_THAT(pair.store->ReadGroup(3),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("group 3, index 1")));
}

TEST(BufferStoreTest, WritesThatQueueUpShareOneTransaction) {
  TempDir dir;
  Pair pair(dir.File("s.sqlite"), true);
  absl::Notification first_written, all_queued, last_answered;
  std::vector<int> order;  // written by the writer thread alone until last_answered
  const auto write = [&](int i, BufferStore::Done done) {
    StoreChange change;
    change.trajectory =
        MakeTrajectoryRow(MakeTrajectory({"run-a", static_cast<uint64_t>(i + 1), 0, 0}, 1));
    pair.store->Write(std::move(change), std::move(done));
  };
  write(0, [&](absl::Status status) {
    order.push_back(0);
    first_written.Notify();
    all_queued.WaitForNotification();
  });
  first_written.WaitForNotification();
  for (int i = 1; i < 500; ++i) {
    write(i, [&order, &last_answered, i](absl::Status status) {
      EXPECT_OK(status);
      order.push_back(i);
      if (i == 499) last_answered.Notify();
    });
  }
  EXPECT_GT(pair.store->queued_bytes(), 0u);
  all_queued.Notify();
  last_answered.WaitForNotification();
  ASSERT_THAT(order, SizeIs(500));
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_THAT(pair.metrics.Serialize(), HasSubstr("millrace_buffer_commit_batch_changes_count 2"));
}

}  // namespace
}  // namespace millrace
