#include "rollout_server/rollout_service.h"

#include <map>
#include <thread>

#include "common/grpc_util.h"
#include "tests/rollout_server/fakes.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::CopyTask;
using ::millrace::testing::FakeEngine;
using ::millrace::testing::FakeGate;
using ::millrace::testing::kPatience;
using ::millrace::testing::StatusIs;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class RolloutServiceTest : public ::testing::Test {
 protected:
  void SetUp() override { Serve(); }
  void Serve() {
    RolloutService::Options options;
    options.server = "rollout-0";
    options.max_calls = 2;
    options.sample_wait = sample_wait_;
    service_ = std::make_unique<RolloutService>(
        options,
        RolloutService::Parts{&engine_, &gate_, &task_, tokenizer_.get(), nullptr, &metrics_});
    auto server = StartGrpcServer("127.0.0.1:0", {service_.get()});
    ASSERT_OK(server);
    server_ = *std::move(server);
    stub_ = v1::Rollout::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", server_.port)));
  }
  void TearDown() override {
    if (call_.joinable()) call_.join();
    server_.server->Shutdown(std::chrono::system_clock::now());
  }

  v1::EvaluateRequest Request(std::vector<uint64_t> ids, int64_t version = 4) {
    v1::EvaluateRequest r;
    r.set_task("copy");
    r.set_split("eval");
    for (uint64_t id : ids) r.add_problem_ids(id);
    r.set_samples(2);
    r.mutable_sampling()->set_temperature(1);
    r.mutable_sampling()->set_seed(9);
    r.set_version(version);
    return r;
  }
  // Runs one Evaluate on a thread of its own; results_ and status_ are there after Join().
  void Evaluate(v1::EvaluateRequest request) {
    call_ = std::thread([this, request] {
      grpc::ClientContext context;
      SetDeadline(&context, kPatience);
      auto reader = stub_->Evaluate(&context, request);
      v1::EvaluateResult result;
      while (reader->Read(&result)) results_.push_back(result);
      status_ = FromGrpc(reader->Finish(), "Evaluate");
    });
  }
  void Join() { call_.join(); }

  absl::Duration sample_wait_ = absl::Seconds(30);
  FakeEngine engine_;
  FakeGate gate_{4};
  CopyTask task_;
  std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::Bytes();
  Metrics metrics_;
  std::unique_ptr<RolloutService> service_;
  RunningServer server_;
  std::unique_ptr<v1::Rollout::Stub> stub_;
  std::thread call_;
  std::vector<v1::EvaluateResult> results_;
  absl::Status status_;
};

TEST_F(RolloutServiceTest, EvaluateStreamsAVerdictForEverySample) {
  Evaluate(Request({20, 21}));
  ASSERT_TRUE(engine_.AwaitRequests(2));
  for (const EngineRequest& request : engine_.requests()) {
    EXPECT_EQ(request.priority, 1);
    EXPECT_EQ(request.pinned_version, 4);
    EXPECT_THAT(request.indices, ElementsAre(0, 1));
    EXPECT_THAT(tokenizer_->Decode(request.prompt), HasSubstr("held out"));
  }
  EXPECT_NE(engine_.requests()[0].seed, engine_.requests()[1].seed);
  ASSERT_TRUE(engine_.EndOldest("20"));
  ASSERT_TRUE(engine_.EndOldest("wrong", FinishReason::kLength));
  Join();
  EXPECT_OK(status_);
  ASSERT_THAT(results_, SizeIs(4));
  for (const v1::EvaluateResult& r : results_) {
    const bool right = r.problem_id() == 20;
    EXPECT_EQ(r.correct(), right);
    EXPECT_EQ(r.reward(), right ? 1 : 0);
    EXPECT_EQ(r.truncated(), !right);
    EXPECT_EQ(r.tokens(), right ? 2u : 5u);
    EXPECT_EQ(r.version(), 4);
    EXPECT_TRUE(r.has_baseline());
    EXPECT_EQ(r.baseline_correct(), right);  // the baseline knows even problems
    EXPECT_EQ(r.prompt_text().empty(), r.sample() != 0);
  }
}

TEST_F(RolloutServiceTest, EvaluateWaitsForItsVersion) {
  v1::EvaluateRequest request = Request({20}, 5);
  request.set_wait_ms(30000);
  Evaluate(request);
  gate_.Set(5);
  ASSERT_TRUE(engine_.EndOldest("20"));
  Join();
  EXPECT_OK(status_);
  EXPECT_THAT(results_, SizeIs(2));
}

TEST_F(RolloutServiceTest, EvaluateSaysThatItsVersionDidNotCome) {
  v1::EvaluateRequest request = Request({20}, 5);
  request.set_wait_ms(10);
  Evaluate(request);
  Join();
  EXPECT_THAT(status_, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                AllOf(HasSubstr("10 ms"), HasSubstr("active version is 4"))));
}

TEST_F(RolloutServiceTest, EvaluateOfAnOldVersionIsRefused) {
  Evaluate(Request({20}, 3));
  Join();
  EXPECT_THAT(status_,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("version 3 is gone")));
}

TEST_F(RolloutServiceTest, EvaluateFailsWhenItsVersionIsReplaced) {
  Evaluate(Request({20, 21}));
  ASSERT_TRUE(engine_.AwaitRequests(2));
  gate_.Set(5);
  ASSERT_TRUE(engine_.EndOldest("", FinishReason::kCancelled));
  Join();
  EXPECT_THAT(status_, StatusIs(absl::StatusCode::kFailedPrecondition,
                                AllOf(HasSubstr("version 4 is gone"), HasSubstr("is 5"))));
  EXPECT_TRUE(engine_.requests().empty());  // the other problem was cancelled
}

TEST_F(RolloutServiceTest, BadRequestsAreNamed) {
  const struct {
    std::function<void(v1::EvaluateRequest*)> change;
    absl::StatusCode code;
    const char* message;
  } cases[] = {
      {[](auto* r) { r->set_task("sql"); }, absl::StatusCode::kInvalidArgument, "not \"sql\""},
      {[](auto* r) { r->set_split("test"); }, absl::StatusCode::kInvalidArgument,
       "valid: eval, train"},
      {[](auto* r) { r->set_samples(0); }, absl::StatusCode::kInvalidArgument, "samples is 0"},
      {[](auto* r) { r->add_problem_ids(13); }, absl::StatusCode::kInternal, "eval/13"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    v1::EvaluateRequest request = Request({20});
    c.change(&request);
    Evaluate(request);
    Join();
    EXPECT_THAT(status_, StatusIs(c.code, HasSubstr(c.message)));
    EXPECT_TRUE(engine_.requests().empty());
  }
}

TEST_F(RolloutServiceTest, GenerateReturnsTokensWithLogprobsAndVersions) {
  v1::GenerateReply reply;
  absl::Status status;
  call_ = std::thread([&] {
    grpc::ClientContext context;
    SetDeadline(&context, kPatience);
    v1::GenerateRequest request;
    request.add_prompt(65);
    request.set_samples(2);
    request.add_stop_ids(258);
    request.mutable_sampling()->set_max_new_tokens(3);
    status = FromGrpc(stub_->Generate(&context, request, &reply), "Generate");
  });
  ASSERT_TRUE(engine_.AwaitRequests(1));
  EXPECT_THAT(engine_.requests()[0].prompt, ElementsAre(65));
  EXPECT_EQ(engine_.requests()[0].max_new_tokens, 3);
  ASSERT_TRUE(engine_.EndOldest("abc", FinishReason::kLength));
  Join();
  EXPECT_OK(status);
  ASSERT_EQ(reply.samples_size(), 2);
  EXPECT_THAT(reply.samples(1).token_ids(), ElementsAre('a', 'b', 'c'));
  EXPECT_THAT(reply.samples(1).versions(), ElementsAre(3, 4, 4));
  EXPECT_EQ(reply.samples(1).logprobs_size(), 3);
  EXPECT_TRUE(reply.samples(1).truncated());
}

TEST_F(RolloutServiceTest, StatusTellsNameAndVersion) {
  grpc::ClientContext context;
  SetDeadline(&context, kPatience);
  v1::RolloutStatusReply reply;
  ASSERT_TRUE(stub_->Status(&context, {}, &reply).ok());
  EXPECT_EQ(reply.server(), "rollout-0");
  EXPECT_EQ(reply.version(), 4);
  EXPECT_FALSE(reply.draining());
}

TEST_F(RolloutServiceTest, ACallerThatGoesAwayCancelsItsSamples) {
  grpc::ClientContext context;
  auto reader = stub_->Evaluate(&context, Request({20}));
  ASSERT_TRUE(engine_.AwaitRequests(1));
  context.TryCancel();
  EXPECT_TRUE(engine_.AwaitCancelled(1));
  reader->Finish();
}

class ImpatientServiceTest : public RolloutServiceTest {
 protected:
  void SetUp() override {
    sample_wait_ = absl::Milliseconds(10);
    Serve();
  }
};

TEST_F(ImpatientServiceTest, AnEngineThatStandsStillIsNamed) {
  Evaluate(Request({20}));
  Join();
  EXPECT_THAT(status_, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                AllOf(HasSubstr("2 of 2 samples"), HasSubstr("engine runs"))));
}

}  // namespace
}  // namespace millrace
