// The kernels of a training step, one by one. Whole passes: transformer_test.cc.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "model/kernels/attention_train.h"
#include "model/kernels/train_elementwise.h"
#include "model/kernels/train_tile.h"
#include "model/transformer_fused.h"
#include "tests/model/golden_model.h"

namespace millrace {
namespace {

using testing::MaxDifference;

std::vector<float> RandomFloats(int64_t n, uint64_t seed) {
  at::Generator g = at::detail::createCPUGenerator(seed);
  at::Tensor t = at::empty({n});
  t.normal_(0, 1, g);
  return {t.data_ptr<float>(), t.data_ptr<float>() + n};
}

TEST(FastExpTest, IsExactToAFewUnitsInTheLastPlace) {
  EXPECT_EQ(FastExp(0.0f), 1.0f);
  EXPECT_EQ(FastExp(-200.0f), 0.0f);
  EXPECT_EQ(FastExp(-INFINITY), 0.0f);
  double worst = 0;
  for (float x = -87.0f; x < 88.0f; x += 0.0137f) {
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(FastExp(x) - exact) / exact);
  }
  EXPECT_LT(worst, 4e-7);
}

TEST(TileProductTest, EqualsPlainLoopsForEverySizeOfEdge) {
  for (int64_t rows : {1, 2, 3, 5, 8, 13, 32}) {
    for (int64_t columns : {1, 15, 16, 17, 32, 40, 49}) {
      for (const bool add : {false, true}) {
        for (const bool transposed : {false, true}) {
          const int64_t depth = 7, width = RoundUpToLanes(columns) + 3;
          const std::vector<float> a = RandomFloats(rows * depth, 1);
          const std::vector<float> b = RandomFloats(depth * width, 2);
          std::vector<float> c = RandomFloats(rows * width, 3), expected = c;
          for (int64_t m = 0; m < rows; ++m) {
            for (int64_t n = 0; n < columns; ++n) {
              double sum = add ? c[m * width + n] : 0;
              for (int64_t k = 0; k < depth; ++k) {
                sum += a[transposed ? k * rows + m : m * depth + k] * b[k * width + n];
              }
              expected[m * width + n] = static_cast<float>(sum);
            }
          }
          const TileLeft left =
              transposed ? TileLeft{a.data(), 1, rows} : TileLeft{a.data(), depth, 1};
          TileProduct({rows, columns, depth}, left, {b.data(), width}, {c.data(), width}, add);
          for (int64_t m = 0; m < rows; ++m) {
            for (int64_t n = 0; n < columns; ++n) {
              ASSERT_NEAR(c[m * width + n], expected[m * width + n], 1e-5)
                  << rows << " x " << columns << " at " << m << ", " << n;
            }
            // Behind the rounded width nothing is written.
            for (int64_t n = RoundUpToLanes(columns); n < width; ++n) {
              ASSERT_EQ(c[m * width + n], expected[m * width + n]);
            }
          }
        }
      }
    }
  }
}

// Three trees: a prompt with completions, a chain of prefixes, a lone segment of several blocks.
PackedBatch Trees() {
  PackedBatch b;
  const auto add = [&](int64_t n, int64_t prefix) {
    const int64_t begin = b.token_ids.size();
    b.token_ids.resize(begin + n);
    b.positions.resize(begin + n);
    b.segments.push_back({begin, begin + n, prefix});
  };
  add(5, -1), add(3, 0), add(40, 0), add(1, 0);
  add(17, -1), add(2, 4), add(33, 5);
  add(70, -1);
  return b;
}

TEST(TrainAttentionTest, PlanListsWhatEachSegmentSees) {
  const TrainAttentionPlan plan = PlanTrainAttention(Trees());
  ASSERT_EQ(plan.trees.size(), 3u);
  EXPECT_EQ(plan.trees[0].tokens, 49);
  ASSERT_EQ(plan.trees[0].nodes.size(), 4u);
  const auto& chain = plan.trees[1].nodes[2].keys;
  ASSERT_EQ(chain.size(), 3u);
  EXPECT_EQ(chain[0].row, 49);
  EXPECT_EQ(chain[0].local, 0);
  EXPECT_EQ(chain[1].local, 17);
  EXPECT_EQ(chain[2].row, 68);
  EXPECT_EQ(chain[2].length, 33);
}

TEST(TrainAttentionTest, GivesTheSameBitsForAnyNumberOfThreads) {
  const PackedBatch batch = Trees();
  const TrainAttentionPlan plan = PlanTrainAttention(batch);
  const int64_t tokens = batch.token_ids.size(), heads = 4, kv = 2, dim = 24;
  const std::vector<float> qk = RandomFloats(tokens * (heads + kv) * dim + 16, 1);
  const std::vector<float> v = RandomFloats(tokens * kv * dim, 2);
  const std::vector<float> d_out = RandomFloats(tokens * heads * dim + 16, 3);
  const TrainAttentionInput in{qk.data(), (heads + kv) * dim, v.data(), kv * dim, heads, kv, dim};
  const auto run = [&](int threads) {
    at::set_num_threads(threads);
    std::vector<float> out(tokens * heads * dim), log_sum(tokens * heads);
    std::vector<float> d_qkv(tokens * (heads + 2 * kv) * dim);
    TrainAttentionForward(plan, in, out.data(), log_sum.data());
    TrainAttentionBackward(
        plan, in, {out.data(), log_sum.data(), d_out.data(), d_qkv.data(), (heads + 2 * kv) * dim});
    out.insert(out.end(), d_qkv.begin(), d_qkv.end());
    return out;
  };
  const int before = at::get_num_threads();
  const std::vector<float> one = run(1), three = run(3);
  at::set_num_threads(before);
  EXPECT_EQ(one, three);
  EXPECT_TRUE(std::all_of(one.begin(), one.end(), [](float x) { return std::isfinite(x); }));
}

TEST(TrainElementwiseTest, ReductionsGiveTheSameBitsForAnyNumberOfThreads) {
  const int64_t rows = 700, width = 40;
  const std::vector<float> x = RandomFloats(rows * width, 1), d_y = RandomFloats(rows * width, 2);
  const std::vector<float> weight = RandomFloats(width, 3);
  std::vector<int32_t> ids(rows);
  for (int64_t r = 0; r < rows; ++r) ids[r] = static_cast<int32_t>(r * r % 7);
  const auto run = [&](int threads) {
    at::set_num_threads(threads);
    std::vector<float> out(rows * width + width * 9, 0.5f);
    float* d_weight = out.data() + rows * width;
    RmsNormBackward({rows, width, 1e-6f}, x.data(), weight.data(), d_y.data(), out.data(),
                    /*add=*/true, d_weight);
    AddColumnSums(rows, width, d_y.data(), d_weight + width);
    ScatterAddRows(rows, width, ids.data(), d_y.data(), d_weight + 2 * width);
    return out;
  };
  const int before = at::get_num_threads();
  const std::vector<float> one = run(1), three = run(3);
  at::set_num_threads(before);
  EXPECT_EQ(one, three);
}

class FusedTransformerTest : public ::testing::Test {
 protected:
  const ModelConfig config_ = testing::SmallConfig("qwen3");
  std::unique_ptr<Transformer> model_ = testing::MakeModel(config_, testing::Path::kFused);
  at::Tensor gradients_ = model_->flat_gradients();
  const PackedBatch small_ = testing::PackRows({{1, 2, 3}, {4, 5, 6, 7}}, 0);
  const PackedBatch large_ = testing::PackRows({{1, 2, 3, 9, 8, 7}, {4, 5, 6, 7, 1, 2}}, 2);
};

TEST_F(FusedTransformerTest, BuffersAreUsedAgainFromStepToStep) {
  FusedTransformer fused(config_, model_->weights());
  const ModelWeights views = MakeWeightViews(config_, gradients_);
  at::Tensor anchor = at::zeros({1}).set_requires_grad(true);
  const auto step = [&](const PackedBatch& batch) {
    fused.ForwardWithGradient(batch, views, anchor).sum().backward();
    c10::AutoGradMode no_grad(false);
    fused.Forward(batch);
  };
  step(large_);
  const int64_t allocations = fused.buffer_allocations(), bytes = fused.buffer_bytes();
  EXPECT_GT(allocations, 0);
  for (const PackedBatch* batch : {&small_, &large_, &small_, &large_}) step(*batch);
  EXPECT_EQ(fused.buffer_allocations(), allocations);
  EXPECT_EQ(fused.buffer_bytes(), bytes);
  EXPECT_FALSE(anchor.grad().defined());
}

TEST_F(FusedTransformerTest, PassesBetweenAForwardAndItsBackwardDoNotDisturbIt) {
  model_->Forward(large_)->square().sum().backward();
  const at::Tensor expected = gradients_.clone();
  model_->ZeroGradients();
  at::Tensor first = *model_->Forward(large_), second = *model_->Forward(small_);
  {
    c10::AutoGradMode no_grad(false);
    ASSERT_TRUE(model_->Forward(small_).ok());
  }
  (second * 0).sum().backward();
  first.square().sum().backward();
  EXPECT_LT(MaxDifference(gradients_, expected), 1e-6 * expected.abs().max().item<double>());
}

TEST_F(FusedTransformerTest, SecondBackwardOfOneForwardIsAnError) {
  at::Tensor loss = model_->Forward(small_)->sum();
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST_F(FusedTransformerTest, ForwardAloneAllocatesNoGradients) {
  std::unique_ptr<Transformer> reference = *model_->Clone();
  c10::AutoGradMode no_grad(false);
  const at::Tensor hidden = *reference->Forward(large_);
  EXPECT_FALSE(hidden.requires_grad());
  EXPECT_FALSE(reference->parameters()[0].grad.defined());
  EXPECT_FALSE(reference->lm_head().requires_grad());
  c10::AutoGradMode grad(true);
  EXPECT_LT(MaxDifference(hidden, *model_->Forward(large_)), 1e-6);
}

}  // namespace
}  // namespace millrace
