#include "model/logprobs.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "tests/model/golden_model.h"
#include "tests/testing/fake_device.h"

namespace millrace {
namespace {

using testing::MaxDifference;

struct Inputs {
  at::Tensor hidden, lm_head, targets, direction;
};

Inputs MakeInputs(int64_t rows, int64_t hidden, int64_t vocab, double scale) {
  at::Generator g = at::detail::createCPUGenerator(11);
  Inputs in{at::empty({rows, hidden}), at::empty({vocab, hidden}), at::empty({rows}),
            at::empty({rows})};
  in.hidden.normal_(0, scale, g);
  in.lm_head.normal_(0, 1, g);
  in.targets = in.targets.uniform_(0, static_cast<double>(vocab), g).floor().to(at::kLong);
  in.targets.clamp_(0, vocab - 1);
  in.direction.normal_(0, 1, g);
  return in;
}

struct Case {
  const char* name;
  int64_t rows, hidden, vocab, chunk;
  double scale, temperature;
  bool fake_device;
};

class SelectedLogprobsTest : public ::testing::TestWithParam<Case> {};

TEST_P(SelectedLogprobsTest, EqualsLogSoftmaxOfWholeLogits) {
  const Case c = GetParam();
  const Inputs in = MakeInputs(c.rows, c.hidden, c.vocab, c.scale);
  const at::Device device = c.fake_device ? testing::FakeDevice() : at::Device(at::kCPU);
  at::Tensor hidden = in.hidden.to(at::kDouble).set_requires_grad(true);
  at::Tensor head = in.lm_head.to(at::kDouble).set_requires_grad(true);
  const at::Tensor all = at::log_softmax(at::matmul(hidden, head.t()) / c.temperature, -1);
  const at::Tensor expected = all.gather(1, in.targets.unsqueeze(1)).squeeze(1);
  const at::Tensor entropy = -(at::exp(all) * all).sum(-1);
  (expected * in.direction).sum().backward();

  at::Tensor h = in.hidden.to(device).set_requires_grad(true);
  at::Tensor w = in.lm_head.to(device).set_requires_grad(true);
  const LogprobResult got = SelectedLogprobs(h, w, in.targets.to(device), {c.temperature, c.chunk});
  EXPECT_FALSE(got.entropy.requires_grad());
  (got.logprobs * in.direction.to(device)).sum().backward();
  EXPECT_LT(MaxDifference(got.logprobs, expected), 1e-5);
  EXPECT_LT(MaxDifference(got.entropy, entropy), 1e-5);
  const auto close = [](const at::Tensor& a, const at::Tensor& b) {
    EXPECT_LT(MaxDifference(a, b), 1e-5 * std::max(1.0, b.abs().max().item<double>()));
  };
  close(h.grad(), hidden.grad());
  close(w.grad(), head.grad());
}

INSTANTIATE_TEST_SUITE_P(Table, SelectedLogprobsTest,
                         ::testing::Values(Case{"one_chunk", 20, 16, 50, 64, 0.5, 1.0, false},
                                           Case{"many_chunks", 23, 16, 50, 4, 0.5, 1.0, false},
                                           Case{"chunk_of_one", 5, 16, 50, 1, 0.5, 1.0, false},
                                           Case{"temperature", 23, 16, 50, 7, 0.5, 0.6, false},
                                           Case{"hot", 23, 16, 50, 7, 0.5, 3.0, false},
                                           Case{"peaked", 23, 16, 50, 7, 4.0, 1.0, false},
                                           Case{"vocab_below_a_vector", 9, 8, 5, 4, 0.5, 1.0,
                                                false},
                                           Case{"wide", 12, 8, 4099, 5, 0.5, 0.9, false},
                                           Case{"fake_device", 23, 16, 50, 7, 0.5, 0.6, true}),
                         [](const auto& info) { return info.param.name; });

TEST(SelectedLogprobsTest, GradientOfTheHeadGoesStraightToAPresetGradient) {
  const Inputs in = MakeInputs(9, 8, 20, 0.5);
  at::Tensor plain = in.lm_head.clone().set_requires_grad(true);
  (SelectedLogprobs(in.hidden, plain, in.targets, {1.0, 4}).logprobs * in.direction)
      .sum()
      .backward();

  at::Tensor preset = in.lm_head.clone().set_requires_grad(true);
  at::Tensor buffer = at::ones_like(in.lm_head);
  preset.mutable_grad() = buffer;
  const LogprobResult r = SelectedLogprobs(in.hidden, preset, in.targets, {1.0, 4});
  (r.logprobs * in.direction).sum().backward();
  EXPECT_LT(MaxDifference(buffer - 1, plain.grad()), 1e-5);
  EXPECT_TRUE(preset.grad().is_same(buffer));
}

TEST(SelectedLogprobsTest, WrongShapesThrowWithTheShapes) {
  const Inputs in = MakeInputs(9, 8, 20, 0.5);
  EXPECT_THROW(SelectedLogprobs(in.hidden, in.lm_head.narrow(1, 0, 7), in.targets, {1.0, 4}),
               c10::Error);
  EXPECT_THROW(SelectedLogprobs(in.hidden, in.lm_head, in.targets.narrow(0, 0, 8), {1.0, 4}),
               c10::Error);
  EXPECT_THROW(SelectedLogprobs(in.hidden, in.lm_head, in.targets, {0.0, 4}), c10::Error);
}

// Passes allocations on and keeps the peak of what is held at once.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* base) : base_(base) {}
  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr inner = base_->allocate(bytes);
    auto* block = new Block{std::move(inner), bytes};
    held_ += bytes;
    peak_ = std::max(peak_.load(), held_.load());
    return {block->data.get(), block, &Release, block->data.device()};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    base_->copy_data(to, from, bytes);
  }
  void Reset() { peak_ = held_.load(); }
  size_t above_start() const { return peak_ - start_; }
  void Start() {
    Reset();
    start_ = held_;
  }

 private:
  struct Block {
    c10::DataPtr data;
    size_t bytes;
  };
  static void Release(void* p) {
    auto* block = static_cast<Block*>(p);
    held_ -= block->bytes;
    delete block;
  }
  static inline std::atomic<size_t> held_{0}, peak_{0};
  size_t start_ = 0;
  c10::Allocator* base_;
};

TEST(SelectedLogprobsTest, PeakMemoryIsThatOfOneChunkForAnyNumberOfRows) {
  c10::Allocator* base = c10::GetCPUAllocator();
  static CountingAllocator counting(base);
  const int64_t vocab = 3000, chunk = 8, hidden = 4;
  const auto peak = [&](int64_t rows) {
    const Inputs in = MakeInputs(rows, hidden, vocab, 0.5);
    at::Tensor h = in.hidden.clone().set_requires_grad(true);
    at::Tensor w = in.lm_head.clone().set_requires_grad(true);
    w.mutable_grad() = at::zeros_like(w);
    c10::SetCPUAllocator(&counting, /*priority=*/1);
    counting.Start();
    SelectedLogprobs(h, w, in.targets, {1.0, chunk}).logprobs.sum().backward();
    const size_t bytes = counting.above_start();
    c10::SetCPUAllocator(base, /*priority=*/1);
    return bytes;
  };
  const size_t logits = chunk * vocab * sizeof(float);
  const size_t few = peak(16), many = peak(512);
  EXPECT_GE(few, logits);  // the count works
  EXPECT_LT(few, 2 * logits);
  // Vectors of the rows' length (results, gradients) may grow; logits of 512 rows would be 6 MB.
  EXPECT_LT(many, few + 512 * (hidden + 16) * sizeof(float));
}

}  // namespace
}  // namespace millrace
