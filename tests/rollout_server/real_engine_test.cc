// The lease loop, the weight swap and the service around a real engine with a small random model.
#include <atomic>
#include <memory>
#include <thread>

#include "common/grpc_util.h"
#include "model/parameter_view.h"
#include "model/run_model.h"
#include "rollout_server/lease_loop.h"
#include "rollout_server/rollout_service.h"
#include "rollout_server/weight_swap.h"
#include "tests/rollout_server/fakes.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::FakeBuffer;
using ::millrace::testing::kPatience;
using ::millrace::testing::MakeLease;
using ::millrace::testing::StatusIs;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class RealEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RunConfig::Model config;
    config.hidden_size = 16;
    config.layers = 2;
    config.heads = 2;
    config.kv_heads = 1;
    config.head_dim = 8;
    config.intermediate_size = 32;
    config.max_position = 4096;
    ASSERT_OK_AND_ASSIGN(model_, LoadRunModel(config));
    ASSERT_OK_AND_ASSIGN(task_, MakeTask({"sums", 1, 99}));
    ASSERT_OK_AND_ASSIGN(auto transformer, Transformer::Create(model_.config, 0, at::kCPU));
    Engine::Options options;
    options.max_batch = 8;
    options.kv_tokens = 16384;
    ASSERT_OK_AND_ASSIGN(engine_, Engine::Start(std::move(transformer), options, &metrics_));
    sampler_ = MakeSampleEngine(engine_.get());
    swap_ = std::make_unique<WeightSwap>(model_.config, MakeEngineSwap(engine_.get()), &metrics_);
  }

  // Publishes the weights of a model made from seed `version` + 1, as weight sync would.
  absl::Status ActivateVersion(int64_t version) {
    MR_ASSIGN_OR_RETURN(auto source, Transformer::Create(model_.config, version + 1, at::kCPU));
    MR_ASSIGN_OR_RETURN(const ParameterView view, ParameterView::Of(*source));
    std::vector<NamedSpan> spans;
    for (const ParameterBytes& p : view.parameters()) {
      spans.push_back({p.name, p.dtype, p.shape, p.bytes});
    }
    MR_RETURN_IF_ERROR(swap_->Prepare(version, spans));
    return swap_->Activate(version, spans, absl::Now() + kPatience);
  }

  GroupLease Lease(uint64_t group, int64_t min_version) {
    GroupLease lease = MakeLease(group, group, {0, 1, 2, 3});
    lease.task = "sums";
    lease.min_version = min_version;
    return lease;
  }

  RunModel model_;
  std::unique_ptr<Task> task_;
  Metrics metrics_;
  FakeBuffer buffer_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<SampleEngine> sampler_;
  std::unique_ptr<WeightSwap> swap_;
};

TEST_F(RealEngineTest, GroupsBecomeValidTrajectoriesOfTheVersionTheyAskedFor) {
  LeaseLoop::Options options;
  options.run = "run-a";
  options.server = "rollout-0";
  options.max_new_tokens = 12;
  options.max_unfinished = 8;
  options.group_size = 4;
  options.lease_wait = absl::Milliseconds(20);
  options.stop_ids = StopIds(*model_.tokenizer, model_.config.eos_ids);
  LeaseLoop loop(options, {&buffer_, sampler_.get(), swap_.get(), task_.get(),
                           model_.tokenizer.get(), &metrics_});
  std::atomic<bool> stop{false};
  std::thread thread(
      [&] { EXPECT_OK(loop.Run([&]() -> absl::StatusOr<bool> { return stop.load(); })); });
  buffer_.Offer(Lease(1, 0));
  ASSERT_OK(ActivateVersion(0));
  ASSERT_TRUE(buffer_.AwaitPushed(4));
  buffer_.Offer(Lease(2, 1));
  ASSERT_OK(ActivateVersion(1));
  ASSERT_TRUE(buffer_.AwaitPushed(8));
  stop = true;
  thread.join();
  for (const Trajectory& t : buffer_.pushed()) {
    SCOPED_TRACE(absl::StrCat("group ", t.key.group_id, " index ", t.key.index));
    EXPECT_OK(ValidateTrajectory(t));
    EXPECT_EQ(OldestVersion(t), t.key.group_id == 1 ? 0 : 1);
    EXPECT_LE(SampledTokens(t), 12);
    EXPECT_GE(SampledTokens(t), 1);
    EXPECT_THAT(t.status, AnyOf(TrajectoryStatus::kCompleted, TrajectoryStatus::kTruncated));
  }
}

TEST_F(RealEngineTest, ASwapInMidSampleShowsInTheVersionSpans) {
  ASSERT_OK(ActivateVersion(0));
  absl::Mutex mu;
  std::vector<GeneratedSample> samples;
  std::atomic<int> tokens{0};
  EngineRequest request;
  request.prompt = {65, 66, 67};
  request.indices = {0, 1};
  request.max_new_tokens = 2000;
  // Decodes on until the second version is there, then ten tokens more.
  std::atomic<int> after{0};
  request.stop = [&](absl::Span<const int32_t>) {
    ++tokens;
    return engine_->version() == 1 && ++after > 10;
  };
  request.on_sample = [&](GeneratedSample sample) {
    absl::MutexLock lock(&mu);
    samples.push_back(std::move(sample));
  };
  ASSERT_OK(sampler_->Submit(request));
  ASSERT_OK(ActivateVersion(1));
  ASSERT_TRUE(testing::AwaitTrue(&mu, [&] { return samples.size() == 2; }));
  for (const GeneratedSample& s : samples) {
    uint32_t next = 0;
    int64_t version = -1;
    for (const VersionSpan& span : s.versions) {
      EXPECT_EQ(span.begin, next);
      EXPECT_GT(span.version, version);
      next = span.end;
      version = span.version;
    }
    EXPECT_EQ(next, s.token_ids.size());
    EXPECT_LE(version, 1);
  }
}

TEST_F(RealEngineTest, WeightsThatDoNotFitLeaveTheOldVersion) {
  ASSERT_OK(ActivateVersion(0));
  const std::vector<NamedSpan> nothing;
  EXPECT_THAT(swap_->Activate(1, nothing, absl::Now() + kPatience),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(swap_->active_version(), 0);
  EXPECT_EQ(engine_->version(), 0);
}

TEST_F(RealEngineTest, AnEvaluationIsPinnedToItsVersion) {
  ASSERT_OK(ActivateVersion(0));
  RolloutService::Options options;
  options.stop_ids = {};
  RolloutService service(options, {sampler_.get(), swap_.get(), task_.get(), model_.tokenizer.get(),
                                   nullptr, &metrics_});
  ASSERT_OK_AND_ASSIGN(RunningServer server, StartGrpcServer("127.0.0.1:0", {&service}));
  auto stub = v1::Rollout::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", server.port)));
  v1::EvaluateRequest request;
  request.set_task("sums");
  request.set_split("eval");
  for (int id = 0; id < 6; ++id) request.add_problem_ids(id);
  request.set_samples(2);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_max_new_tokens(8);
  request.set_version(0);

  std::vector<std::vector<std::string>> texts(2);
  for (std::vector<std::string>& run : texts) {
    grpc::ClientContext context;
    SetDeadline(&context, kPatience);
    auto reader = stub->Evaluate(&context, request);
    v1::EvaluateResult result;
    while (reader->Read(&result)) {
      EXPECT_EQ(result.version(), 0);
      run.push_back(
          absl::StrCat(result.problem_id(), "/", result.sample(), ": ", result.completion_text()));
    }
    EXPECT_OK(FromGrpc(reader->Finish(), "Evaluate"));
    ASSERT_THAT(run, SizeIs(12));
    std::sort(run.begin(), run.end());
  }
  EXPECT_EQ(texts[0], texts[1]);  // the same seeds draw the same tokens

  // Far more than can be done before the next version comes.
  request.mutable_sampling()->set_max_new_tokens(3000);
  grpc::ClientContext context;
  SetDeadline(&context, kPatience);
  auto reader = stub->Evaluate(&context, request);
  const absl::Time deadline = absl::Now() + kPatience;
  while (engine_->stats().running == 0 && absl::Now() < deadline) std::this_thread::yield();
  ASSERT_OK(ActivateVersion(1));
  v1::EvaluateResult result;
  while (reader->Read(&result)) {
  }
  EXPECT_THAT(FromGrpc(reader->Finish(), "Evaluate"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("version 0 is gone")));
  server.server->Shutdown();
}

}  // namespace
}  // namespace millrace
