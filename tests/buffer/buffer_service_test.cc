#include "buffer/buffer_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "buffer/trajectory_proto.h"
#include "tests/buffer/buffer_harness.h"
#include "tests/testing/fake_clock.h"

namespace millrace {
namespace {

using namespace millrace::testing;  // NOLINT(google-build-using-namespace)
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

TEST(BufferServiceTest, LeasesBecomeTrajectoriesAndTheseABatch) {
  BufferHarness buffer;
  BufferClient rollout(buffer.ClientOptions()), learner(buffer.ClientOptions("learner"));
  ASSERT_OK(learner.SetVersion(0));
  ASSERT_OK_AND_ASSIGN(const LeaseResult leases, rollout.Lease(3, kLong));
  ASSERT_THAT(leases.leases, SizeIs(3));
  EXPECT_EQ(leases.leases[0].task, "sums");
  PushGroup(rollout, leases.leases[0]);
  PushGroup(rollout, leases.leases[1], false);
  PushGroup(rollout, leases.leases[2]);
  ASSERT_OK_AND_ASSIGN(const Batch batch, learner.NextBatch(1, 0, kLong));
  ASSERT_THAT(batch.groups, SizeIs(2));
  EXPECT_EQ(batch.groups[0].group_id, 1u);
  EXPECT_EQ(batch.groups[1].group_id, 3u);
  EXPECT_THAT(batch.dropped, ElementsAre(Pair("degenerate", 1)));
  EXPECT_THAT(batch.groups[0].trajectories,
              ElementsAre(MakeTrajectory("run-a", leases.leases[0], 0, 0),
                          MakeTrajectory("run-a", leases.leases[0], 1, 1)));
  ASSERT_OK(learner.Commit(1, "step-000001"));
  ASSERT_OK_AND_ASSIGN(const BufferStats stats, learner.Stats());
  EXPECT_EQ(stats.committed_groups, 2u);
  EXPECT_EQ(stats.stored_trajectories, 6u);
  EXPECT_EQ(stats.generated_tokens, 6u * 8);
  EXPECT_EQ(stats.dropped_tokens, 2u * 8);
  EXPECT_EQ(stats.run, "run-a");
}

TEST(BufferServiceTest, EveryMessageIsAnsweredOnceInOrder) {
  BufferHarness buffer;
  BufferClient client(buffer.ClientOptions());
  ASSERT_OK(client.SetVersion(0));
  ASSERT_OK_AND_ASSIGN(const LeaseResult leases, client.Lease(1, kLong));
  const GroupLease& lease = leases.leases.at(0);
  Trajectory bad = MakeTrajectory("run-a", lease, 1, 1);
  bad.logprobs[6] = 3;
  struct Sent {
    Trajectory trajectory;
    v1::PushResult result;
    std::string reason;
  };
  const std::vector<Sent> sent = {
      {MakeTrajectory("run-a", lease, 0, 1), v1::STORED, ""},
      {MakeTrajectory("run-a", lease, 0, 1), v1::DUPLICATE, ""},
      {bad, v1::REFUSED, "logprobs[6]"},
      {MakeTrajectory("run-a", lease, 7, 1), v1::REFUSED, "key.index: 7"},
      {MakeTrajectory("run-a", lease, 1, 0), v1::STORED, ""},
  };
  grpc::ClientContext context;
  SetDeadline(&context, kLong);
  const auto stub = buffer.Stub();
  const auto stream = stub->Push(&context);
  for (const Sent& one : sent) {
    v1::PushRequest request;
    ToProto(one.trajectory, request.mutable_trajectory());
    ASSERT_TRUE(stream->Write(request));
  }
  stream->WritesDone();
  v1::PushReply reply;
  for (const Sent& one : sent) {
    ASSERT_TRUE(stream->Read(&reply));
    EXPECT_EQ(reply.key().index(), one.trajectory.key.index);
    EXPECT_EQ(reply.result(), one.result) << reply.reason();
    EXPECT_THAT(reply.reason(), HasSubstr(one.reason));
  }
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_OK(FromGrpc(stream->Finish(), "Push"));
  ASSERT_OK_AND_ASSIGN(const BufferStats stats, client.Stats());
  EXPECT_EQ(stats.duplicate_pushes, 1u);
  EXPECT_EQ(stats.refused_pushes, 2u);
  EXPECT_EQ(stats.ready_groups, 1u);
}

TEST(BufferServiceTest, AStatusThatIsNotSetIsRefusedByName) {
  BufferHarness buffer;
  grpc::ClientContext context;
  SetDeadline(&context, kLong);
  const auto stub = buffer.Stub();
  const auto stream = stub->Push(&context);
  ASSERT_TRUE(stream->Write(v1::PushRequest()));
  v1::PushReply reply;
  ASSERT_TRUE(stream->Read(&reply));
  EXPECT_EQ(reply.result(), v1::REFUSED);
  EXPECT_THAT(reply.reason(), HasSubstr("status is 0"));
}

TEST(BufferServiceTest, AnOversizedMessageIsResourceExhausted) {
  BufferHarness buffer;
  BufferClient client(buffer.ClientOptions());
  ASSERT_OK(client.SetVersion(0));
  ASSERT_OK_AND_ASSIGN(const LeaseResult leases, client.Lease(1, kLong));
  Trajectory big = MakeTrajectory("run-a", leases.leases.at(0), 0, 1);
  big.completion_text.assign(kMaxMessageBytes + 1, 'x');
  const PushResult result = PushAndWait(client, big);
  EXPECT_THAT(result.outcome, StatusIs(absl::StatusCode::kResourceExhausted,
                                       HasSubstr("larger than max 67108864")));

  grpc::ChannelArguments unlimited;
  unlimited.SetMaxSendMessageSize(-1);
  const auto stub = v1::Buffer::NewStub(grpc::CreateCustomChannel(
      buffer.ClientOptions().address, grpc::InsecureChannelCredentials(), unlimited));
  grpc::ClientContext context;
  SetDeadline(&context, kLong);
  const auto stream = stub->Push(&context);
  v1::PushRequest request;
  ToProto(big, request.mutable_trajectory());
  stream->Write(request);
  v1::PushReply reply;
  EXPECT_FALSE(stream->Read(&reply));
  EXPECT_THAT(FromGrpc(stream->Finish(), "Push"),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("larger than max")));
}

TEST(BufferServiceTest, ATrajectoryThatWouldNotFitIntoABatchMessageIsRefused) {
  BufferHarness buffer;
  BufferClient client(buffer.ClientOptions());
  ASSERT_OK(client.SetVersion(0));
  ASSERT_OK_AND_ASSIGN(const LeaseResult leases, client.Lease(1, kLong));
  Trajectory big = MakeTrajectory("run-a", leases.leases.at(0), 0, 1);
  big.completion_text.assign(8 << 20, 'x');
  const PushResult result = PushAndWait(client, big);
  ASSERT_OK(result.outcome);
  EXPECT_EQ(*result.outcome, PushOutcome::kRefused);
  EXPECT_THAT(result.reason, HasSubstr("the limit is 7340032 bytes"));
}

TEST(BufferServiceTest, AClientOfAnotherRunIsToldBothRuns) {
  BufferHarness buffer;
  BufferClient stranger(buffer.ClientOptions("rollout-9", "run-b"));
  EXPECT_THAT(stranger.Lease(1, absl::ZeroDuration()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("run-a"), HasSubstr("run-b"), HasSubstr("rollout-9"))));
  const PushResult result = PushAndWait(stranger, MakeTrajectory({"run-b", 1, 0, 0}, 1));
  EXPECT_THAT(result.outcome, StatusIs(absl::StatusCode::kFailedPrecondition,
                                       AllOf(HasSubstr("run-a"), HasSubstr("run-b"))));
}

TEST(BufferServiceTest, AnExpiredLeaseGoesToWhoeverWaits) {
  FakeClock clock;
  BufferHarness::Settings settings;
  settings.clock = &clock;
  BufferHarness buffer(settings);
  BufferClient dead(buffer.ClientOptions("rollout-0")), alive(buffer.ClientOptions("rollout-1"));
  ASSERT_OK(alive.SetVersion(0));
  ASSERT_OK_AND_ASSIGN(const LeaseResult first, dead.Lease(4, kLong));
  ASSERT_THAT(first.leases, SizeIs(4));
  ASSERT_OK(PushAndWait(dead, MakeTrajectory("run-a", first.leases[0], 1, 1)).outcome);
  ASSERT_OK_AND_ASSIGN(const RenewResult kept, dead.Renew({{2, 0}}));
  EXPECT_THAT(kept.lost, IsEmpty());

  absl::StatusOr<LeaseResult> second;
  std::thread waiter([&] { second = alive.Lease(1, absl::Hours(2)); });
  // The timer and nobody else waits on this clock.
  EXPECT_TRUE(clock.AwaitWaiters(1));
  clock.Advance(absl::Seconds(61));
  waiter.join();
  ASSERT_OK(second);
  ASSERT_THAT(second->leases, SizeIs(1));
  EXPECT_EQ(second->leases[0].group_id, 1u);
  EXPECT_EQ(second->leases[0].attempt, 1u);
  EXPECT_THAT(second->leases[0].missing, ElementsAre(0));
  ASSERT_OK_AND_ASSIGN(const RenewResult lost, dead.Renew({{1, 0}}));
  EXPECT_THAT(lost.lost, ElementsAre(LeaseName{1, 0}));
}

TEST(BufferServiceTest, AWaitingLeaseWakesWhenADroppedGroupMakesRoom) {
  BufferHarness buffer;
  BufferClient a(buffer.ClientOptions("a")), b(buffer.ClientOptions("b"));
  ASSERT_OK(a.SetVersion(0));
  ASSERT_OK_AND_ASSIGN(const LeaseResult all, a.Lease(10, kLong));
  ASSERT_THAT(all.leases, SizeIs(4));
  absl::StatusOr<LeaseResult> woken;
  std::thread waiter([&] { woken = b.Lease(1, kLong); });
  PushGroup(a, all.leases[0], false);
  waiter.join();
  ASSERT_OK(woken);
  ASSERT_THAT(woken->leases, SizeIs(1));
  EXPECT_EQ(woken->leases[0].group_id, 5u);
}

TEST(BufferServiceTest, AWaitThatRunsOutSaysWhatItWaitedFor) {
  BufferHarness buffer;
  BufferClient client(buffer.ClientOptions());
  ASSERT_OK_AND_ASSIGN(const LeaseResult early, client.Lease(1, absl::Milliseconds(20)));
  EXPECT_THAT(early.leases, IsEmpty());
  EXPECT_EQ(early.waiting_for, "the learner to publish its weights");
  ASSERT_OK(client.SetVersion(0));
  ASSERT_OK(client.Lease(10, kLong));
  ASSERT_OK_AND_ASSIGN(const LeaseResult full, client.Lease(1, absl::Milliseconds(20)));
  EXPECT_THAT(full.waiting_for, HasSubstr("admission: 4 of 4 groups in flight"));
  EXPECT_THAT(client.NextBatch(1, 0, absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("NextBatch of step 1 on the buffer at 127.0.0.1")));
  EXPECT_THAT(client.NextBatch(1, 0, absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("for groups: 0 of 2 ready, 4 leased")));
}

TEST(BufferServiceTest, WaitingServersAreEachGivenAShare) {
  BufferHarness buffer;
  BufferClient a(buffer.ClientOptions("a")), b(buffer.ClientOptions("b"));
  absl::StatusOr<LeaseResult> of_a, of_b;
  // In the core itself, so that both wait for certain before the version comes.
  absl::Notification done_a, done_b;
  buffer.core().Lease("a", 10, kLong, [&](absl::StatusOr<LeaseResult> result) {
    of_a = std::move(result);
    done_a.Notify();
  });
  buffer.core().Lease("b", 10, kLong, [&](absl::StatusOr<LeaseResult> result) {
    of_b = std::move(result);
    done_b.Notify();
  });
  ASSERT_OK(a.SetVersion(0));
  ASSERT_TRUE(done_a.WaitForNotificationWithTimeout(kLong));
  ASSERT_TRUE(done_b.WaitForNotificationWithTimeout(kLong));
  EXPECT_THAT(of_a->leases, SizeIs(2));
  EXPECT_THAT(of_b->leases, SizeIs(2));
}

TEST(BufferServiceTest, ACallerThatGoesAwayTakesNoLease) {
  BufferHarness buffer;
  BufferClient client(buffer.ClientOptions());
  grpc::ClientContext context;
  SetDeadline(&context, absl::Milliseconds(50));
  v1::LeaseRequest request;
  request.set_run("run-a");
  request.set_server("gone");
  request.set_max_groups(10);
  request.set_wait_ms(600000);
  v1::LeaseReply reply;
  EXPECT_EQ(buffer.Stub()->Lease(&context, request, &reply).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  // The server learns of it a moment after the client.
  const absl::Time limit = absl::Now() + kLong;
  std::string text;
  do {
    buffer.core().UpdateMetrics();
    text = buffer.metrics().Serialize();
    std::this_thread::yield();
  } while (text.find("millrace_buffer_waiting_calls 0") == std::string::npos &&
           absl::Now() < limit);
  EXPECT_THAT(text, HasSubstr("millrace_buffer_waiting_calls 0"));
  ASSERT_OK(client.SetVersion(0));
  ASSERT_OK_AND_ASSIGN(const BufferStats stats, client.Stats());
  EXPECT_EQ(stats.leased_groups, 0u);
}

TEST(BufferServiceTest, ReleasedGroupsAreLeasedAgainAtOnce) {
  BufferHarness buffer;
  BufferClient a(buffer.ClientOptions("a")), b(buffer.ClientOptions("b"));
  ASSERT_OK(a.SetVersion(0));
  ASSERT_OK(a.Lease(4, kLong));
  ASSERT_OK(a.Release({{2, 0}}));
  ASSERT_OK_AND_ASSIGN(const LeaseResult again, b.Lease(4, kLong));
  ASSERT_THAT(again.leases, SizeIs(1));
  EXPECT_EQ(again.leases[0].group_id, 2u);
  EXPECT_EQ(again.leases[0].attempt, 1u);
}

TEST(BufferServiceTest, RewindEndsTheWaitOfTheLearnersPreviousLife) {
  BufferHarness buffer;
  BufferClient learner(buffer.ClientOptions("learner"));
  ASSERT_OK(learner.SetVersion(0));
  absl::Notification ended;
  buffer.core().NextBatch(1, 0, kLong, [&](absl::StatusOr<BatchPlan> plan) {
    EXPECT_THAT(plan, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("Rewind")));
    ended.Notify();
  });
  ASSERT_OK_AND_ASSIGN(const RewindResult rewound, learner.Rewind(0));
  EXPECT_EQ(rewound.last_version, 0);
  ASSERT_TRUE(ended.WaitForNotificationWithTimeout(kLong));
}

TEST(BufferServiceTest, ARunThatIsOverTellsServersSo) {
  BufferHarness buffer;
  BufferClient rollout(buffer.ClientOptions()), learner(buffer.ClientOptions("learner"));
  absl::StatusOr<LeaseResult> result;
  std::thread waiter([&] { result = rollout.Lease(1, kLong); });
  ASSERT_OK(learner.SetVersion(0, true));
  waiter.join();
  ASSERT_OK(result);
  EXPECT_TRUE(result->finished);
}

TEST(BufferServiceTest, AStreamWithHardlyAnyRoomStillMovesOn) {
  BufferHarness::Settings settings;
  settings.service = {1, 1};
  settings.groups.group_size = 64;
  BufferHarness buffer(settings);
  BufferClient client(buffer.ClientOptions());
  ASSERT_OK(client.SetVersion(0));
  ASSERT_OK_AND_ASSIGN(const LeaseResult leases, client.Lease(4, kLong));
  absl::Mutex mu;
  int stored = 0;
  for (const GroupLease& lease : leases.leases) {
    for (const uint32_t index : lease.missing) {
      client.Push(MakeTrajectory("run-a", lease, index, index),
                  [&](absl::StatusOr<PushOutcome> outcome, const std::string& reason) {
                    EXPECT_OK(outcome);
                    absl::MutexLock lock(&mu);
                    ++stored;
                  });
    }
  }
  ASSERT_OK(client.FlushPushes(kLong));
  EXPECT_EQ(stored, 256);
}

TEST(BufferServiceTest, AFullDiskIsNeverAcknowledged) {
  BufferHarness::Settings settings;
  settings.max_pages = 24;
  settings.groups.group_size = 64;
  BufferHarness buffer(settings);
  BufferClient::Options options = buffer.ClientOptions();
  options.retry_for = absl::Seconds(1);
  BufferClient client(options);
  ASSERT_OK(client.SetVersion(0));
  ASSERT_OK_AND_ASSIGN(const LeaseResult leases, client.Lease(1, kLong));
  absl::Status error;
  uint64_t stored = 0;
  for (const uint32_t index : leases.leases.at(0).missing) {
    const PushResult result =
        PushAndWait(client, MakeTrajectory("run-a", leases.leases[0], index, 1, 0, 2000));
    if (!result.outcome.ok()) {
      error = result.outcome.status();
      break;
    }
    ++stored;
  }
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kResourceExhausted,
                              AllOf(HasSubstr("disk is full"), HasSubstr("group 1 index"))));
  ASSERT_OK_AND_ASSIGN(const BufferStats stats, client.Stats());
  EXPECT_EQ(stats.stored_trajectories, stored);
  ASSERT_OK_AND_ASSIGN(const auto read, buffer.core().ReadGroup(1));
  EXPECT_THAT(read, SizeIs(stored));
  EXPECT_FALSE(buffer.core().health().ok());
}

TEST(BufferServiceTest, MetricsSayWhatHappened) {
  BufferHarness buffer;
  BufferClient client(buffer.ClientOptions());
  ASSERT_OK(client.SetVersion(0));
  ASSERT_OK_AND_ASSIGN(const LeaseResult leases, client.Lease(3, kLong));
  PushGroup(client, leases.leases[0]);
  PushGroup(client, leases.leases[1], false);
  PushGroup(client, leases.leases[2]);
  ASSERT_OK(client.NextBatch(1, 0, kLong));
  buffer.core().UpdateMetrics();
  const std::string text = buffer.metrics().Serialize();
  for (const char* line :
       {"millrace_buffer_pushes_total{result=\"stored\"} 6",
        "millrace_buffer_dropped_groups_total{reason=\"degenerate\"} 1",
        "millrace_buffer_dropped_tokens_total 16", "millrace_buffer_assigned_groups 2",
        "millrace_buffer_staleness_versions_count 2", "millrace_buffer_push_seconds_count 6",
        "millrace_buffer_admission_window_groups", "millrace_buffer_sync_seconds_bucket"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

}  // namespace
}  // namespace millrace
