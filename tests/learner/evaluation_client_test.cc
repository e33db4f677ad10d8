#include "learner/evaluation_client.h"

#include <atomic>
#include <map>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/grpc_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/rollout.grpc.pb.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// Answers that a problem is right when its id is even; fails its first `failures` calls half-way.
class FakeRollout : public v1::Rollout::Service {
 public:
  explicit FakeRollout(int failures = 0) : failures_(failures) {}

  grpc::Status Evaluate(grpc::ServerContext* context, const v1::EvaluateRequest* request,
                        grpc::ServerWriter<v1::EvaluateResult>* writer) override {
    ++calls_;
    const bool fail = failures_-- > 0;
    int sent = 0;
    for (uint64_t id : request->problem_ids()) {
      for (uint32_t sample = 0; sample < request->samples(); ++sample) {
        if (fail && sent++ == 3) return {grpc::StatusCode::UNAVAILABLE, "the server went away"};
        v1::EvaluateResult result;
        result.set_problem_id(id);
        result.set_sample(sample);
        result.set_correct(id % 2 == 0);
        result.set_tokens(10);
        result.set_truncated(id == 1);
        result.set_version(request->version());
        result.set_has_baseline(true);
        result.set_baseline_correct(id % 4 == 0);
        writer->Write(result);
      }
    }
    return grpc::Status::OK;
  }
  int calls() const { return calls_; }

 private:
  std::atomic<int> failures_;
  std::atomic<int> calls_{0};
};

class EvaluationClientTest : public ::testing::Test {
 protected:
  void AddMember(FakeRollout* service) {
    auto server = StartGrpcServer("127.0.0.1:0", {service});
    ASSERT_TRUE(server.ok()) << server.status();
    MemberInfo member;
    member.member = absl::StrCat("rollout-", members_.size());
    member.control_address = absl::StrCat("127.0.0.1:", server->port);
    member.active_version = 5;
    members_.push_back(member);
    servers_.push_back(*std::move(server));
  }
  absl::StatusOr<EvalOutcome> Run(EvalRequest request) {
    Evaluator::Options options;
    options.task = "sums";
    options.members = [this] { return members_; };
    options.retry_pause = absl::Milliseconds(1);
    options.progress = [this](const EvalRequest&, int64_t done, int64_t total) {
      absl::MutexLock lock(&mu_);
      progress_.insert(done);
      EXPECT_EQ(total, 50);
    };
    return Evaluator(std::move(options)).Run(request);
  }
  EvalRequest Request() {
    EvalRequest request;
    request.kind = "before";
    request.mode = "sampled";
    request.version = 5;
    request.problems = 50;
    request.samples = 4;
    request.timeout = absl::Seconds(60);
    return request;
  }

  absl::Mutex mu_;
  std::set<int64_t> progress_;
  std::vector<MemberInfo> members_;
  std::vector<RunningServer> servers_;
};

TEST_F(EvaluationClientTest, SpreadsShardsOverMembersAndCountsEveryProblemOnce) {
  FakeRollout a, b;
  AddMember(&a);
  AddMember(&b);
  auto outcome = Run(Request());
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->samples, 200);
  EXPECT_EQ(outcome->correct, 100);
  EXPECT_EQ(outcome->accuracy, 0.5);
  // 50 problems that are all right or all wrong count as 50, not as 200.
  EXPECT_NEAR(outcome->low, 0.366, 0.01);
  EXPECT_NEAR(outcome->high, 0.634, 0.01);
  EXPECT_EQ(outcome->baseline_correct, 13);
  EXPECT_EQ(outcome->tokens_mean, 10);
  EXPECT_EQ(outcome->truncated, 4);
  EXPECT_EQ(outcome->version, 5);
  EXPECT_EQ(a.calls() + b.calls(), 4);
  EXPECT_TRUE(progress_.contains(50));
}

TEST_F(EvaluationClientTest, GivesAShardThatFailedHalfWayToAnotherTry) {
  FakeRollout flaky(3), steady;
  AddMember(&flaky);
  AddMember(&steady);
  auto outcome = Run(Request());
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_EQ(outcome->samples, 200);
  EXPECT_EQ(outcome->correct, 100);
}

TEST_F(EvaluationClientTest, NamesTheShardAndTheLastErrorWhenNobodyCanDoIt) {
  FakeRollout broken(1000);
  AddMember(&broken);
  auto outcome = Run(Request());
  ASSERT_EQ(outcome.status().code(), absl::StatusCode::kUnavailable);
  const std::string message(outcome.status().message());
  EXPECT_THAT(message, HasSubstr("failed 6 times"));
  EXPECT_THAT(message, HasSubstr("rollout-0"));
  EXPECT_THAT(message, HasSubstr("the server went away"));
}

TEST_F(EvaluationClientTest, SaysThatThereWereNoMembersWhenItsTimeIsUp) {
  EvalRequest request = Request();
  request.timeout = absl::Milliseconds(10);
  auto outcome = Run(request);
  ASSERT_EQ(outcome.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(outcome.status().message()), HasSubstr("members: none"));
}

TEST_F(EvaluationClientTest, EndsWhenItIsCancelled) {
  EvalRequest request = Request();
  request.cancelled = [] { return true; };
  EXPECT_EQ(Run(request).status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace millrace
