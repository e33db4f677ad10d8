// A buffer that goes away and comes back under clients that do not notice.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "buffer/sqlite.h"
#include "common/clock.h"
#include "common/config.h"
#include "common/files.h"
#include "tests/buffer/buffer_harness.h"

extern char** environ;

namespace millrace {
namespace {

using namespace millrace::testing;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Leases groups and pushes their members until told to stop; counts what was acknowledged.
class Producer {
 public:
  explicit Producer(BufferClient::Options options) : client_(std::move(options)) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Producer() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int acked() const { return acked_; }
  bool AwaitAcked(int count) {
    absl::MutexLock lock(&mu_);
    const auto enough = [this, count] { return acked_ >= count; };
    return mu_.AwaitWithTimeout(absl::Condition(&enough), kLong);
  }
  // Keys that were acknowledged, after the thread has ended.
  std::set<std::pair<uint64_t, uint32_t>> Finish() {
    stop_ = true;
    thread_.join();
    EXPECT_OK(client_.FlushPushes(kLong));
    absl::MutexLock lock(&mu_);
    return keys_;
  }

 private:
  void Run() {
    while (!stop_) {
      absl::StatusOr<LeaseResult> leases = client_.Lease(2, absl::Milliseconds(200));
      if (!leases.ok()) {
        ADD_FAILURE() << leases.status();
        return;
      }
      for (const GroupLease& lease : leases->leases) {
        for (const uint32_t index : lease.missing) PushOne(lease, index);
      }
    }
  }
  void PushOne(const GroupLease& lease, uint32_t index) {
    client_.Push(MakeTrajectory("run-a", lease, index, 1),  // degenerate: makes room
                 [this, id = lease.group_id, index](absl::StatusOr<PushOutcome> outcome,
                                                    const std::string& reason) {
                   EXPECT_OK(outcome);
                   EXPECT_NE(outcome.ok() ? *outcome : PushOutcome::kRefused, PushOutcome::kRefused)
                       << reason;
                   absl::MutexLock lock(&mu_);
                   EXPECT_TRUE(keys_.insert({id, index}).second) << "answered twice";
                   ++acked_;
                 });
  }

  BufferClient client_;
  std::atomic<bool> stop_{false};
  std::atomic<int> acked_{0};
  absl::Mutex mu_;
  std::set<std::pair<uint64_t, uint32_t>> keys_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

// Every acknowledged key is in the store, and none twice.
void Audit(const std::string& path, const std::set<std::pair<uint64_t, uint32_t>>& acked) {
  ASSERT_OK_AND_ASSIGN(SqlDatabase database, SqlDatabase::Open(path, true));
  ASSERT_OK_AND_ASSIGN(SqlStatement query,
                       database.Prepare("SELECT group_id, member_index FROM trajectories"));
  std::set<std::pair<uint64_t, uint32_t>> stored;
  for (;;) {
    ASSERT_OK_AND_ASSIGN(const bool row, query.Step());
    if (!row) break;
    EXPECT_TRUE(
        stored.insert({static_cast<uint64_t>(query.Int(0)), static_cast<uint32_t>(query.Int(1))})
            .second);
  }
  for (const auto& key : acked) {
    EXPECT_EQ(stored.count(key), 1u) << "lost: group " << key.first << " index " << key.second;
  }
  EXPECT_GE(acked.size(), 1u);
}

TEST(BufferRestartTest, AClientThatPushesDoesNotNoticeARestart) {
  BufferHarness buffer;
  {
    BufferClient learner(buffer.ClientOptions("learner"));
    ASSERT_OK(learner.SetVersion(0));
  }
  Producer producer(buffer.ClientOptions());
  for (int restart = 1; restart <= 5; ++restart) {
    ASSERT_TRUE(producer.AwaitAcked(restart * 40));
    buffer.Stop();
    buffer.Start();
  }
  ASSERT_TRUE(producer.AwaitAcked(producer.acked() + 40));
  const auto acked = producer.Finish();
  buffer.Stop();
  Audit(buffer.store_path(), acked);
}

TEST(BufferRestartTest, ABatchIsTheSameAfterARestart) {
  BufferHarness buffer;
  BufferClient client(buffer.ClientOptions());
  ASSERT_OK(client.SetVersion(0));
  ASSERT_OK_AND_ASSIGN(const LeaseResult leases, client.Lease(4, kLong));
  for (const GroupLease& lease : leases.leases) PushGroup(client, lease);
  ASSERT_OK_AND_ASSIGN(const Batch first, client.NextBatch(1, 0, kLong));
  buffer.Stop();
  buffer.Start();
  ASSERT_OK_AND_ASSIGN(const Batch again, client.NextBatch(1, 0, kLong));
  ASSERT_THAT(again.groups, SizeIs(2));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(again.groups[i].group_id, first.groups[i].group_id);
    EXPECT_EQ(again.groups[i].trajectories, first.groups[i].trajectories);
  }
  ASSERT_OK_AND_ASSIGN(const RewindResult rewound, client.Rewind(0));
  EXPECT_EQ(rewound.returned_groups, 2u);
}

TEST(BufferRestartTest, AServerThatWasKilledComesBackToItsGroupsAlsoAfterARestartOfTheBuffer) {
  BufferHarness buffer;
  BufferClient::Options options = buffer.ClientOptions();
  options.instance = 100;
  BufferClient killed(options);
  ASSERT_OK(killed.SetVersion(0));
  ASSERT_OK_AND_ASSIGN(const LeaseResult first, killed.Lease(4, kLong));
  ASSERT_THAT(first.leases, SizeIs(4));
  buffer.Stop();
  buffer.Start();
  ASSERT_OK_AND_ASSIGN(const RenewResult kept, killed.Renew({{first.leases[0].group_id, 0}}));
  EXPECT_TRUE(kept.lost.empty()) << "the same process goes on";
  options.instance = 200;
  BufferClient back(options);
  ASSERT_OK(back.Release({}));
  ASSERT_OK_AND_ASSIGN(const RenewResult gone, killed.Renew({{first.leases[0].group_id, 0}}));
  EXPECT_THAT(gone.lost, SizeIs(1));
  ASSERT_OK_AND_ASSIGN(const LeaseResult again, back.Lease(4, kLong));
  ASSERT_THAT(again.leases, SizeIs(4)) << "all of them, long before they run out";
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(again.leases[i].group_id, first.leases[i].group_id);
    EXPECT_EQ(again.leases[i].attempt, 1u);
  }
  // What the killed process had on its way arrives late.
  PushGroup(back, again.leases[0]);
  EXPECT_EQ(*PushAndWait(killed, MakeTrajectory("run-a", first.leases[0], 0, 0)).outcome,
            PushOutcome::kRefused);
  EXPECT_EQ(*PushAndWait(killed, MakeTrajectory("run-a", first.leases[1], 0, 0)).outcome,
            PushOutcome::kStored);
}

TEST(BufferRestartTest, PrunedPayloadsAreGoneAndWhatCanBeAskedForIsThere) {
  BufferHarness::Settings settings;
  settings.groups.keep_steps = 1;
  BufferHarness buffer(settings);
  BufferClient client(buffer.ClientOptions());
  ASSERT_OK(client.SetVersion(0));
  for (uint64_t step = 1; step <= 66; ++step) {
    const auto version = static_cast<int64_t>(step) - 1;
    ASSERT_OK_AND_ASSIGN(const LeaseResult leases, client.Lease(2, kLong));
    for (const GroupLease& lease : leases.leases) PushGroup(client, lease, true, version);
    ASSERT_OK(client.NextBatch(step, version, kLong).status());
    ASSERT_OK(client.SetVersion(version + 1));
    ASSERT_OK(client.Commit(step, "checkpoint"));
  }
  buffer.Stop();
  {
    ASSERT_OK_AND_ASSIGN(SqlDatabase database, SqlDatabase::Open(buffer.store_path(), true));
    const std::string count = "SELECT count(*) FROM trajectories WHERE ";
    EXPECT_THAT(database.QueryInt(count + "length(payload) = 0"), IsOkAndHolds(2 * 4));
    EXPECT_THAT(database.QueryInt(count + "length(payload) = 0 AND group_id > 4"), IsOkAndHolds(0));
    EXPECT_THAT(database.QueryInt(count + "completion_text = '4'"), IsOkAndHolds(66 * 4));
  }
  buffer.Start();
  EXPECT_THAT(client.Rewind(1).status(), StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_OK_AND_ASSIGN(const RewindResult rewound, client.Rewind(2));
  EXPECT_EQ(rewound.returned_groups, 2u * 64);
  ASSERT_OK(client.SetVersion(67));
  ASSERT_OK_AND_ASSIGN(const Batch batch, client.NextBatch(3, 67, kLong));
  EXPECT_EQ(batch.groups[0].trajectories[0].token_ids.size(), 12u);
}

TEST(BufferRestartTest, AnUnreachableBufferIsAnErrorThatNamesItOnceTheTimeIsUp) {
  BufferHarness buffer;
  BufferClient::Options options = buffer.ClientOptions();
  options.retry_for = absl::Milliseconds(300);
  BufferClient client(options);
  buffer.Stop();
  EXPECT_THAT(client.Stats(),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr(options.address), HasSubstr("tried for 300ms"))));
  const PushResult result = PushAndWait(client, MakeTrajectory({"run-a", 1, 0, 0}, 1));
  EXPECT_THAT(result.outcome.status().message(), HasSubstr("group 1 index 0 attempt 0 was not "
                                                           "confirmed within 300ms"));
  buffer.Start();
}

// The real program, killed for real.
class BufferProcess {
 public:
  BufferProcess(std::string run_dir, int port) : run_dir_(std::move(run_dir)) {
    const std::string program = std::string(MILLRACE_BIN_DIR) + "/millrace-buffer";
    const std::string listen = absl::StrCat("127.0.0.1:", port);
    std::filesystem::remove(run_dir_ + "/endpoints/buffer.json");
    std::vector<std::string> words = {program, "--run-dir", run_dir_, "--listen", listen};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, (run_dir_ + "/buffer.log").c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0644);
    EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~BufferProcess() { Signal(SIGKILL); }
  // Returns the exit status; -1 when the signal killed it or it was gone.
  int Signal(int number) {
    if (pid_ <= 0) return -1;
    kill(pid_, number);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // Its address, once it has announced itself.
  std::string Address() const {
    const absl::Time limit = Clock::Real()->Now() + kLong;
    while (Clock::Real()->Now() < limit) {
      const absl::StatusOr<std::string> text = ReadFile(run_dir_ + "/endpoints/buffer.json");
      if (text.ok()) return nlohmann::json::parse(*text)["address"];
      std::this_thread::yield();
    }
    ADD_FAILURE() << "the buffer did not announce itself";
    return "";
  }

 private:
  const std::string run_dir_;
  pid_t pid_ = 0;
};

TEST(BufferRestartTest, AKilledProgramLosesNothingAndStoresNothingTwice) {
  TempDir dir;
  RunConfig config;
  config.run.name = "run-a";
  config.rollout.group_size = 2;
  std::ofstream(dir.File("config.toml")) << PrintConfig(config);
  auto process = std::make_unique<BufferProcess>(dir.path(), 0);
  const std::string address = process->Address();
  ASSERT_FALSE(address.empty());
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  {
    BufferClient learner({address, "run-a", "learner", kLong});
    ASSERT_OK(learner.SetVersion(0));
  }
  Producer producer({address, "run-a", "rollout-0", kLong});
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(producer.AwaitAcked(producer.acked() + 20));
    process->Signal(SIGKILL);
    process = std::make_unique<BufferProcess>(dir.path(), port);
  }
  ASSERT_TRUE(producer.AwaitAcked(producer.acked() + 20));
  const auto acked = producer.Finish();
  EXPECT_EQ(process->Signal(SIGTERM), 0);
  Audit(dir.File("buffer.sqlite"), acked);
}

}  // namespace
}  // namespace millrace
