#include "rollout_server/weight_swap.h"

#include <thread>

#include "tests/rollout_server/fakes.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::StatusIs;
using ::testing::HasSubstr;

ModelConfig SmallModel() {
  ModelConfig c;
  c.model_type = "qwen3";
  c.vocab_size = 300;
  c.hidden_size = 8;
  c.intermediate_size = 16;
  c.layers = 1;
  c.heads = 2;
  c.kv_heads = 1;
  c.head_dim = 4;
  c.max_position = 64;
  c.tie_word_embeddings = true;
  c.qk_norm = true;
  return c;
}

std::vector<NamedSpan> Tensors(const ModelConfig& config) {
  std::vector<NamedSpan> out;
  for (const ParameterShape& p : ParameterShapes(config)) out.push_back({p.name, "F32", p.shape});
  return out;
}

class WeightSwapTest : public ::testing::Test {
 protected:
  Metrics metrics_;
  absl::Status answer_;
  WeightSwap swap_{SmallModel(),
                   [this](int64_t, absl::Span<const NamedSpan>, absl::Time) { return answer_; },
                   &metrics_};
};

TEST_F(WeightSwapTest, TheModelsOwnTensorsFit) {
  EXPECT_OK(swap_.Prepare(0, Tensors(SmallModel())));
}

TEST_F(WeightSwapTest, WhatDoesNotFitIsNamed) {
  const struct {
    const char* what;
    std::function<void(std::vector<NamedSpan>*)> change;
    const char* message;
  } cases[] = {
      {"missing", [](auto* t) { t->pop_back(); }, "missing, first model.norm.weight"},
      {"surplus",
       [](auto* t) {
         t->push_back({"extra.weight", "F32", {2}});
       },
       "extra.weight is not one"},
      {"twice", [](auto* t) { t->push_back(t->front()); }, "came twice"},
      {"shape",
       [](auto* t) {
         t->front().shape = {301, 8};
       },
       "has shape (301, 8)"},
      {"dtype", [](auto* t) { t->front().dtype = "I8"; }, "dtype I8"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    std::vector<NamedSpan> tensors = Tensors(SmallModel());
    c.change(&tensors);
    EXPECT_THAT(swap_.Prepare(7, tensors),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("version 7"), HasSubstr(c.message))));
  }
}

TEST_F(WeightSwapTest, AFailedSwapKeepsTheOldVersionAndIsNamedInTheWait) {
  const std::vector<NamedSpan> tensors = Tensors(SmallModel());
  EXPECT_EQ(swap_.active_version(), -1);
  ASSERT_OK(swap_.Activate(0, tensors, absl::InfiniteFuture()));
  answer_ = absl::DeadlineExceededError("a decode step took 61 s");
  EXPECT_THAT(swap_.Activate(1, tensors, absl::InfiniteFuture()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(swap_.active_version(), 0);
  EXPECT_THAT(
      swap_.WaitForVersion(1, absl::ZeroDuration()),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr("version 1"), HasSubstr("active one is 0"), HasSubstr("61 s"))));
}

TEST_F(WeightSwapTest, AWaiterIsWokenByItsVersion) {
  absl::Status waited = absl::UnknownError("not yet");
  std::thread waiter([&] { waited = swap_.WaitForVersion(3, testing::kPatience); });
  ASSERT_OK(swap_.Activate(3, Tensors(SmallModel()), absl::InfiniteFuture()));
  waiter.join();
  EXPECT_OK(waited);
  EXPECT_THAT(metrics_.Serialize(), HasSubstr("millrace_rollout_active_version 3"));
}

}  // namespace
}  // namespace millrace
