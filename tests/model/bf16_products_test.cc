// Products of bf16 factors against plain loops over rounded numbers, and whole passes against fp32.
#include "model/kernels/bf16_products.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <tuple>

#include "model/matrix_products.h"
#include "model/transformer.h"
#include "tests/model/golden_model.h"

namespace millrace {
namespace {

using testing::MaxDifference;

class Bf16Test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasBf16Products()) GTEST_SKIP() << "this CPU has no AVX512_BF16";
  }
  static at::Tensor Random(at::IntArrayRef sizes, uint64_t seed) {
    at::Generator g = at::detail::createCPUGenerator(seed);
    return at::empty(sizes).normal_(0, 1, g);
  }
  static at::Tensor Rounded(const at::Tensor& x) { return x.to(at::kBFloat16).to(at::kDouble); }
};

TEST_F(Bf16Test, ProductsEqualPlainOnesOfRoundedFactorsForEveryLayoutAndEdge) {
  for (int64_t m : {1, 11, 12, 13, 193, 400}) {
    for (int64_t n : {1, 15, 32, 33, 800}) {
      for (int64_t k : {1, 2, 33, 384, 385, 801}) {
        for (int layout = 0; layout < 4; ++layout) {
          const at::Tensor a = layout & 1 ? Random({k, m}, 1).t() : Random({m, k}, 1);
          const at::Tensor b = layout & 2 ? Random({n, k}, 2).t() : Random({k, n}, 2);
          const at::Tensor want = Rounded(a).mm(Rounded(b));
          at::Tensor out = at::full({m, n + 3}, NAN).narrow(1, 0, n);
          MultiplyInto(ComputeType::kBfloat16, out, {}, a, b);
          ASSERT_LT(MaxDifference(out, want), 1e-5 * k + 1e-5)
              << m << " x " << n << " x " << k << ", layout " << layout;
        }
      }
    }
  }
}

TEST_F(Bf16Test, AProductStartsFromARowAMatrixOrItsOwnResult) {
  const at::Tensor a = Random({70, 900}, 1), b = Random({900, 50}, 2);
  const at::Tensor product = Rounded(a).mm(Rounded(b));
  const at::Tensor bias = Random({50}, 3), start = Random({70, 50}, 4);
  at::Tensor out = at::full({70, 50}, NAN);
  MultiplyInto(ComputeType::kBfloat16, out, bias, a, b);
  EXPECT_LT(MaxDifference(out, product + bias), 1e-3);
  MultiplyInto(ComputeType::kBfloat16, out, start, a, b);
  EXPECT_LT(MaxDifference(out, product + start), 1e-3);
  MultiplyInto(ComputeType::kBfloat16, out, out, a, b);
  EXPECT_LT(MaxDifference(out, product * 2 + start), 1e-3);
}

TEST_F(Bf16Test, SumsDoNotDependOnTheNumberOfThreads) {
  const at::Tensor a = Random({90, 700}, 1), b = Random({700, 500}, 2);
  at::Tensor one = at::empty({90, 500}), three = at::empty({90, 500});
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  MultiplyInto(ComputeType::kBfloat16, one, {}, a, b);
  at::set_num_threads(3);
  MultiplyInto(ComputeType::kBfloat16, three, {}, a, b);
  at::set_num_threads(before);
  EXPECT_TRUE(one.equal(three));
}

TEST_F(Bf16Test, ShapesThatDoNotMatchAreAnError) {
  at::Tensor out = at::empty({3, 4});
  EXPECT_THROW(MultiplyInto(ComputeType::kBfloat16, out, {}, at::ones({3, 5}), at::ones({6, 4})),
               c10::Error);
}

// A pass over rounded factors errs by what rounding makes of it, not by more: every option of every
// architecture, gradients in the same direction.
TEST_F(Bf16Test, ATrainingPassStaysCloseToFp32) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3"}) {
    SCOPED_TRACE(type);
    const ModelConfig config = testing::SmallConfig(type);
    std::vector<std::vector<int32_t>> rows(3);
    std::vector<int64_t> targets;
    for (int64_t i = 0; i < 90; ++i) {
      rows[i % 3].push_back(static_cast<int32_t>(i * 7 % 37));
      targets.push_back(i * 11 % 37);
    }
    const PackedBatch batch = testing::PackRows(rows, 5);
    at::Tensor logprobs[2], gradients[2];
    for (const bool bf16 : {false, true}) {
      auto model = testing::MakeModel(config, testing::Path::kFused);
      model->set_compute_type(bf16 ? ComputeType::kBfloat16 : ComputeType::kFloat32);
      gradients[bf16] = model->flat_gradients();
      at::Tensor hidden = model->Forward(batch).value();
      logprobs[bf16] = SelectedLogprobs(hidden, model->lm_head(), at::tensor(targets, at::kLong),
                                        {1.0, 16, model->compute_type()})
                           .logprobs;
      logprobs[bf16].mean().backward();
    }
    EXPECT_LT(MaxDifference(logprobs[0], logprobs[1]), 0.02);
    EXPECT_GT(MaxDifference(logprobs[0], logprobs[1]), 1e-6);
    const double cosine =
        (gradients[0].dot(gradients[1]) / gradients[0].norm() / gradients[1].norm()).item<double>();
    EXPECT_GT(cosine, 0.999);
  }
}

TEST(ComputeTypeTest, NamesAreCheckedAndAutoFallsBack) {
  EXPECT_EQ(ParseComputeType("fp32", true).value(), ComputeType::kFloat32);
  EXPECT_EQ(ParseComputeType("auto", /*on_cpu=*/false).value(), ComputeType::kFloat32);
  EXPECT_EQ(ParseComputeType("auto", true).value(),
            HasBf16Products() ? ComputeType::kBfloat16 : ComputeType::kFloat32);
  EXPECT_EQ(ParseComputeType("bf16", false).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ParseComputeType("fp16", true).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace millrace
