#include "learner/sft.h"

#include "environments/task.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/run_model.h"
#include "tests/learner/tiny_run.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using testing::OrThrow;

class WarmUpTest : public ::testing::Test {
 protected:
  WarmUpTest() {
    config_.model.hidden_size = 32;
    config_.model.layers = 1;
    config_.model.heads = 2;
    config_.model.kv_heads = 1;
    config_.model.head_dim = 16;
    config_.model.intermediate_size = 32;
    config_.task.name = "sums";
    config_.sft.steps = 4;
    config_.sft.batch_size = 4;
    config_.sft.eval_every = 2;
    config_.eval.problems = 5;
    config_.rollout.max_new_tokens = 4;
    run_model_ = OrThrow(LoadRunModel(config_.model));
    model_ = OrThrow(Transformer::Create(run_model_.config, 1, at::kCPU));
    callbacks_.on_step = [this](int64_t step, const SftStepReport&) { steps_.push_back(step); };
    callbacks_.on_check = [this](int64_t step, const GreedyResult&) { checks_.push_back(step); };
  }
  absl::StatusOr<WarmUpResult> Run() {
    return WarmUp(config_, *run_model_.tokenizer, model_.get(), callbacks_);
  }

  RunConfig config_;
  RunModel run_model_;
  std::unique_ptr<Transformer> model_;
  WarmUpCallbacks callbacks_;
  std::vector<int64_t> steps_, checks_;
};

TEST_F(WarmUpTest, SaysThatItDidNotReachItsWindow) {
  config_.sft.stop_low = 0.5;
  const WarmUpResult result = OrThrow(Run());
  EXPECT_EQ(result.end, WarmUpEnd::kOutOfSteps);
  EXPECT_EQ(result.steps, 4);
  EXPECT_THAT(checks_, ::testing::ElementsAre(0, 2, 4));
  EXPECT_THAT(result.message, HasSubstr("did not reach its window [50 %, 60 %]"));
}

TEST_F(WarmUpTest, EndsAtOnceInItsWindow) {
  config_.sft.stop_low = 0;
  const WarmUpResult result = OrThrow(Run());
  EXPECT_EQ(result.end, WarmUpEnd::kInWindow);
  EXPECT_EQ(result.steps, 0);
}

TEST_F(WarmUpTest, SaysThatItStartedAboveItsWindow) {
  config_.sft.stop_low = -2;
  config_.sft.stop_high = -1;
  const WarmUpResult result = OrThrow(Run());
  EXPECT_EQ(result.end, WarmUpEnd::kOvershot);
  EXPECT_THAT(result.message, HasSubstr("jumped over its window"));
}

TEST_F(WarmUpTest, StopsWhenTold) {
  config_.sft.stop_low = 0.5;
  callbacks_.stopping = [this] { return steps_.size() == 1; };
  const WarmUpResult result = OrThrow(Run());
  EXPECT_EQ(result.end, WarmUpEnd::kStopped);
  EXPECT_EQ(result.steps, 1);
}

TEST_F(WarmUpTest, StopsInTheMiddleOfAGreedyCheck) {
  config_.sft.stop_low = 0.5;
  int asked = 0;
  callbacks_.stopping = [&asked] { return ++asked > 2; };
  const WarmUpResult result = OrThrow(Run());
  EXPECT_EQ(result.end, WarmUpEnd::kStopped);
  EXPECT_EQ(result.steps, 0);
  EXPECT_TRUE(checks_.empty()) << "a check that was not made says nothing";
  EXPECT_LE(asked, 4) << "not one decode step more";
}

TEST_F(WarmUpTest, AnswersAnyNumberOfProblems) {
  // Large weights, so that the answers differ from problem to problem.
  for (const NamedParameter& parameter : model_->parameters()) {
    if (parameter.name.find("norm") == std::string::npos) at::Tensor(parameter.tensor).mul_(6);
  }
  TaskOptions options;
  options.name = "sums";
  auto task = OrThrow(MakeTask(options));
  const GreedyResult few =
      OrThrow(GreedyAccuracy(*model_, *run_model_.tokenizer, *task, {3, 8, nullptr}));
  EXPECT_EQ(few.problems, 3);
  const GreedyResult many =
      OrThrow(GreedyAccuracy(*model_, *run_model_.tokenizer, *task, {200, 8, nullptr}));
  EXPECT_EQ(many.problems, 200);
  EXPECT_LE(few.correct, many.correct);
}

}  // namespace
}  // namespace millrace
