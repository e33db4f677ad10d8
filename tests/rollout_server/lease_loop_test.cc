#include "rollout_server/lease_loop.h"

#include <atomic>
#include <map>
#include <memory>
#include <thread>

#include "tests/rollout_server/fakes.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::CopyTask;
using ::millrace::testing::FakeBuffer;
using ::millrace::testing::FakeEngine;
using ::millrace::testing::FakeGate;
using ::millrace::testing::MakeLease;
using ::millrace::testing::StatusIs;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class LeaseLoopTest : public ::testing::Test {
 protected:
  ~LeaseLoopTest() override {
    if (thread_.joinable()) Stop().status().IgnoreError();
  }

  void Start() {
    options_.run = "run-a";
    options_.server = "rollout-0";
    options_.lease_wait = absl::Milliseconds(20);
    loop_ = std::make_unique<LeaseLoop>(
        options_,
        LeaseLoop::Parts{&buffer_, &engine_, &gate_, &task_, tokenizer_.get(), &metrics_});
    thread_ = std::thread([this] {
      result_ = loop_->Run([this]() -> absl::StatusOr<bool> { return stop_.load(); });
    });
  }
  absl::StatusOr<LeaseLoop::End> Join() {
    thread_.join();
    return result_;
  }
  absl::StatusOr<LeaseLoop::End> Stop() {
    stop_ = true;
    return Join();
  }
  bool Serves(const std::string& line) {
    const std::string text = metrics_.Serialize();
    return text.find(line) != std::string::npos;
  }

  LeaseLoop::Options options_;
  FakeBuffer buffer_;
  FakeEngine engine_;
  FakeGate gate_{0};
  CopyTask task_;
  std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::Bytes();
  Metrics metrics_;
  std::atomic<bool> stop_{false};
  std::unique_ptr<LeaseLoop> loop_;
  std::thread thread_;
  absl::StatusOr<LeaseLoop::End> result_ = absl::UnknownError("Run has not returned");
};

TEST_F(LeaseLoopTest, EverySampleOfALeaseIsVerifiedAndPushed) {
  options_.max_new_tokens = 9;
  options_.stop_ids = {258};
  buffer_.Offer(MakeLease(3, 42, {0, 2}));
  Start();
  ASSERT_TRUE(engine_.AwaitRequests(1));
  const EngineRequest request = engine_.requests()[0];
  EXPECT_EQ(tokenizer_->Decode(request.prompt), "copy 42: ");
  EXPECT_THAT(request.indices, ElementsAre(0, 2));
  EXPECT_EQ(request.seed, 1003u);
  EXPECT_EQ(request.max_new_tokens, 9);
  EXPECT_THAT(request.stop_ids, ElementsAre(258));
  EXPECT_EQ(request.priority, 0);
  EXPECT_EQ(request.pinned_version, -1);
  ASSERT_TRUE(request.stop);
  ASSERT_TRUE(engine_.EndOldest("42"));
  ASSERT_TRUE(buffer_.AwaitPushed(2));
  for (const Trajectory& t : buffer_.pushed()) {
    EXPECT_OK(ValidateTrajectory(t));
    EXPECT_EQ(t.key.group_id, 3u);
    EXPECT_EQ(t.reward, 1);
    EXPECT_EQ(t.completion_text, "42");
    EXPECT_EQ(t.status, TrajectoryStatus::kCompleted);
    EXPECT_EQ(OldestVersion(t), 3);
  }
  ASSERT_OK_AND_ASSIGN(const LeaseLoop::End end, Stop());
  EXPECT_EQ(end, LeaseLoop::End::kStopped);
  EXPECT_TRUE(buffer_.released().empty());
}

TEST_F(LeaseLoopTest, RefusedPushesAreCountedAndTheGroupGoesBack) {
  buffer_.Refuse(3);
  buffer_.Offer(MakeLease(3, 42));
  Start();
  ASSERT_TRUE(engine_.EndOldest("42"));
  ASSERT_TRUE(buffer_.AwaitReleased(3));
  // Each of the two members, and what was to take its place.
  EXPECT_TRUE(Serves("millrace_rollout_pushes_total{result=\"refused\"} 4"));
}

TEST_F(LeaseLoopTest, AMemberThatTheBufferWillNotHaveIsNoVerdictRatherThanSampledForEver) {
  buffer_.RefuseVerdicts();
  buffer_.Offer(MakeLease(3, 42));
  Start();
  ASSERT_TRUE(engine_.EndOldest("42"));
  ASSERT_TRUE(buffer_.AwaitPushed(4));
  const std::vector<Trajectory> pushed = buffer_.pushed();
  for (size_t i = 2; i < 4; ++i) {
    EXPECT_OK(ValidateTrajectory(pushed[i]));
    EXPECT_EQ(pushed[i].status, TrajectoryStatus::kFailed);
    EXPECT_EQ(pushed[i].key.group_id, 3u);
    EXPECT_EQ(pushed[i].problem_id, 42u);
    EXPECT_THAT(pushed[i].status_detail, HasSubstr("the buffer refused it: "));
    EXPECT_EQ(SampledTokens(pushed[i]), 0);
  }
  EXPECT_NE(pushed[2].key.index, pushed[3].key.index);
  ASSERT_OK(Stop().status());
  EXPECT_THAT(buffer_.released(), ::testing::IsEmpty());
}

TEST_F(LeaseLoopTest, TroubleWithATaskIsNoVerdictRatherThanRewardZero) {
  const struct {
    uint64_t problem;
    const char* detail;
  } cases[] = {{13, "no problem 13"}, {14, "verifier fell over"}, {1234567, "max_prompt_tokens"}};
  options_.max_prompt_tokens = 10;
  uint64_t group = 0;
  for (const auto& c : cases) buffer_.Offer(MakeLease(++group, c.problem));
  Start();
  ASSERT_TRUE(engine_.EndOldest("14"));
  ASSERT_TRUE(buffer_.AwaitPushed(6));
  std::map<uint64_t, int> seen;
  for (const Trajectory& t : buffer_.pushed()) {
    SCOPED_TRACE(t.problem_id);
    EXPECT_OK(ValidateTrajectory(t));
    EXPECT_EQ(t.status, TrajectoryStatus::kFailed);
    EXPECT_THAT(t.status_detail, HasSubstr(cases[t.key.group_id - 1].detail));
    ++seen[t.key.group_id];
  }
  EXPECT_THAT(seen, SizeIs(3));
}

TEST_F(LeaseLoopTest, ARequestTheEngineRefusesFailsTheGroup) {
  engine_.FailSubmit(absl::ResourceExhaustedError("prompt 10 + 48 tokens exceed 32"));
  buffer_.Offer(MakeLease(1, 5));
  Start();
  ASSERT_TRUE(buffer_.AwaitPushed(2));
  EXPECT_THAT(buffer_.pushed()[0].status_detail, HasSubstr("exceed 32"));
}

TEST_F(LeaseLoopTest, NothingIsLeasedBeforeTheFirstWeights) {
  gate_.Set(-1);
  buffer_.Offer(MakeLease(1, 5));
  std::atomic<int> turns{0};
  absl::Mutex mu;
  options_.lease_wait = absl::Milliseconds(20);
  LeaseLoop loop(options_, {&buffer_, &engine_, &gate_, &task_, tokenizer_.get(), &metrics_});
  // Three turns of the loop without a lease call, then the weights come.
  ASSERT_OK(loop.Run([&]() -> absl::StatusOr<bool> {
    const int turn = ++turns;
    if (turn == 4) {
      EXPECT_EQ(buffer_.lease_calls(), 0);
      gate_.Set(0);
    }
    return turn >= 4 && buffer_.handed_out() == 1;
  }));
  EXPECT_EQ(buffer_.handed_out(), 1);
}

TEST_F(LeaseLoopTest, AGroupIsHeldUntilItsVersionIsActive) {
  GroupLease lease = MakeLease(1, 5);
  lease.min_version = 2;
  buffer_.Offer(lease);
  Start();
  ASSERT_TRUE(buffer_.AwaitHandedOut(1));
  EXPECT_TRUE(engine_.requests().empty());
  gate_.Set(1);
  EXPECT_TRUE(engine_.requests().empty());
  gate_.Set(2);
  EXPECT_TRUE(engine_.AwaitRequests(1));
}

TEST_F(LeaseLoopTest, AGroupWhoseVersionDoesNotComeIsGivenBack) {
  options_.version_wait = absl::Milliseconds(50);
  GroupLease lease = MakeLease(1, 5);
  lease.min_version = 2;
  buffer_.Offer(lease);
  Start();
  EXPECT_TRUE(buffer_.AwaitReleased(1));
  EXPECT_TRUE(engine_.requests().empty());
}

TEST_F(LeaseLoopTest, LeasesAreRenewedWhileTheirSamplesRun) {
  GroupLease lease = MakeLease(1, 5);
  lease.deadline = absl::Now() + absl::Milliseconds(40);
  buffer_.RenewFor(absl::Milliseconds(40));
  buffer_.Offer(lease);
  Start();
  EXPECT_TRUE(buffer_.AwaitRenewals(1, 3));
  ASSERT_TRUE(engine_.EndOldest("5"));
  EXPECT_TRUE(buffer_.AwaitPushed(2));
}

TEST_F(LeaseLoopTest, ABufferWhoseClockIsAheadStillHearsOfItsLeasesInTime) {
  options_.lease_length = absl::Milliseconds(40);
  GroupLease lease = MakeLease(1, 5);
  lease.deadline = absl::Now() + absl::Hours(1);
  buffer_.RenewFor(absl::Hours(1));
  buffer_.Offer(lease);
  Start();
  EXPECT_TRUE(buffer_.AwaitRenewals(1, 3));
}

TEST_F(LeaseLoopTest, GroupAfterGroupThatCannotBeSampledEndsTheRunWithTheCause) {
  options_.max_prompt_tokens = 10;
  options_.max_failed_groups = 3;
  for (uint64_t group : {1, 2}) buffer_.Offer(MakeLease(group, 1234567));
  buffer_.Offer(MakeLease(3, 5));  // one that can be sampled in between
  for (uint64_t group : {4, 5, 6, 7}) buffer_.Offer(MakeLease(group, 1234567));
  Start();
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kResourceExhausted,
                               AllOf(HasSubstr("groups in a row could not be sampled"),
                                     HasSubstr("rollout.max_prompt_tokens is 10"))));
  EXPECT_EQ(engine_.requests().size(), 1u);
}

TEST_F(LeaseLoopTest, AnEngineThatGivesUpSampleAfterSampleEndsTheRun) {
  options_.max_cancelled_samples = 4;
  for (uint64_t group : {1, 2}) buffer_.Offer(MakeLease(group, 5));
  Start();
  ASSERT_TRUE(engine_.EndOldest("5", FinishReason::kCancelled));
  ASSERT_TRUE(engine_.EndOldest("5", FinishReason::kCancelled));
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kInternal, HasSubstr("4 samples in a row")));
}

TEST_F(LeaseLoopTest, ALostLeaseCancelsItsRequestAndPushesNothing) {
  GroupLease lease = MakeLease(1, 5);
  lease.deadline = absl::Now() + absl::Milliseconds(40);
  buffer_.Lose(1);
  buffer_.Offer(lease);
  buffer_.Offer(MakeLease(2, 6));
  Start();
  ASSERT_TRUE(engine_.AwaitCancelled(1));
  ASSERT_TRUE(engine_.EndOldest("6"));  // the other group goes on
  ASSERT_TRUE(buffer_.AwaitPushed(2));
  for (const Trajectory& t : buffer_.pushed()) EXPECT_EQ(t.key.group_id, 2u);
  EXPECT_EQ(buffer_.released().count(1), 0u);
  EXPECT_TRUE(Serves("millrace_rollout_groups_ended_total{result=\"lost\"} 1"));
}

TEST_F(LeaseLoopTest, TheEngineIsKeptFullButNotOverfilled) {
  options_.max_unfinished = 6;
  options_.group_size = 2;
  for (uint64_t g = 1; g <= 10; ++g) buffer_.Offer(MakeLease(g, g + 20));
  Start();
  ASSERT_TRUE(engine_.AwaitRequests(3));  // 3 x 2 samples
  EXPECT_EQ(buffer_.handed_out(), 3);
  ASSERT_TRUE(engine_.EndOldest("21"));
  ASSERT_TRUE(engine_.AwaitRequests(3));
  EXPECT_EQ(buffer_.handed_out(), 4);
}

TEST_F(LeaseLoopTest, DrainWaitsForRunningGroups) {
  buffer_.Offer(MakeLease(1, 5));
  Start();
  ASSERT_TRUE(engine_.AwaitRequests(1));
  uint32_t unfinished = 99;
  std::thread drain([&] { unfinished = loop_->Drain(absl::Seconds(30)); });
  ASSERT_TRUE(engine_.EndOldest("5"));
  drain.join();
  EXPECT_EQ(unfinished, 0u);
  EXPECT_THAT(buffer_.pushed(), SizeIs(2));
  EXPECT_TRUE(buffer_.released().empty());
}

TEST_F(LeaseLoopTest, ADrainThatIsHurriedWaitsForNoGroup) {
  buffer_.Offer(MakeLease(1, 5));
  Start();
  ASSERT_TRUE(engine_.AwaitRequests(1));
  EXPECT_EQ(loop_->Drain(absl::Hours(1), [] { return true; }), 1u);
  EXPECT_THAT(buffer_.released(), Contains(1u));
}

TEST_F(LeaseLoopTest, DrainReleasesWhatDoesNotFinishAndLeasesNoMore) {
  buffer_.Offer(MakeLease(1, 5));
  Start();
  ASSERT_TRUE(engine_.AwaitRequests(1));
  EXPECT_EQ(loop_->Drain(absl::ZeroDuration()), 1u);
  EXPECT_TRUE(loop_->draining());
  EXPECT_THAT(buffer_.released(), Contains(1u));
  EXPECT_TRUE(engine_.AwaitCancelled(1));
  EXPECT_TRUE(buffer_.pushed().empty());
  // A lease call that was under way may still hand out a group: it goes back too.
  buffer_.Offer(MakeLease(2, 6));
  ASSERT_OK(Stop());
  EXPECT_TRUE(engine_.requests().empty());
  if (buffer_.handed_out() == 2) {
    loop_.reset();
    EXPECT_THAT(buffer_.released(), Contains(2u));
  }
}

TEST_F(LeaseLoopTest, TheEndOfTheRunEndsTheLoop) {
  buffer_.Finish();
  Start();
  ASSERT_OK_AND_ASSIGN(const LeaseLoop::End end, Join());
  EXPECT_EQ(end, LeaseLoop::End::kFinished);
}

TEST_F(LeaseLoopTest, ABufferOutOfReachIsWaitedForAndThenNamed) {
  buffer_.Fail(absl::UnavailableError("connection refused"));
  Start();
  ASSERT_TRUE(buffer_.AwaitLeaseCalls(3));
  EXPECT_OK(loop_->health());
  buffer_.Fail(absl::OkStatus());
  buffer_.Offer(MakeLease(1, 5));
  EXPECT_TRUE(engine_.AwaitRequests(1));  // goes on when it is back
}

TEST_F(LeaseLoopTest, ABufferOutOfReachForTooLongEndsTheRun) {
  options_.buffer_retry = absl::Milliseconds(1);
  buffer_.Fail(absl::UnavailableError("connection refused"));
  Start();
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kUnavailable,
                               AllOf(HasSubstr("Lease"), HasSubstr("connection refused"))));
}

TEST_F(LeaseLoopTest, ABufferOfAnotherRunOrTaskEndsTheRunAtOnce) {
  buffer_.Fail(absl::FailedPreconditionError("the buffer serves run b"));
  Start();
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("run b")));
}

TEST_F(LeaseLoopTest, ALeaseOfAnotherTaskEndsTheRunAtOnce) {
  GroupLease lease = MakeLease(1, 5);
  lease.task = "sql";
  buffer_.Offer(lease);
  Start();
  EXPECT_THAT(Join(), StatusIs(absl::StatusCode::kFailedPrecondition,
                               AllOf(HasSubstr("sql"), HasSubstr("copy"))));
}

TEST_F(LeaseLoopTest, LateCallbacksOfTheEngineAreHarmless) {
  buffer_.Offer(MakeLease(1, 5));
  Start();
  ASSERT_TRUE(engine_.AwaitRequests(1));
  const EngineRequest request = engine_.requests()[0];
  ASSERT_OK(Stop());
  loop_.reset();
  GeneratedSample sample;
  sample.token_ids = {53};
  sample.logprobs = {-1};
  sample.versions = {{0, 0, 1}};
  request.on_sample(sample);
  EXPECT_TRUE(buffer_.pushed().empty());
}

}  // namespace
}  // namespace millrace
