#include "model/kernels/train_softmax.h"

#include <cmath>

#include "model/kernels/parallel.h"
#include "model/kernels/train_simd.h"

namespace millrace {
namespace {

constexpr int kLanes = 16;  // independent sums, so that reductions vectorise without reordering

struct RowSums {
  float max, sum, weighted;  // of z, exp(z - max), exp(z - max) * (z - max)
};

MILLRACE_SIMD_CLONES void SumRow(const float* x, int64_t n, float inverse_temperature,
                                 RowSums* out) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = -INFINITY;
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
  }
  float max = -INFINITY;
  for (float lane : lanes) max = lane > max ? lane : max;
  for (int64_t i = whole; i < n; ++i) max = x[i] > max ? x[i] : max;
  float sums[kLanes] = {}, weighted[kLanes] = {};
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      const float z = (x[i + j] - max) * inverse_temperature;
      const float e = FastExp(z);
      sums[j] += e;
      weighted[j] += e * z;
    }
  }
  double sum = 0, weight = 0;
  for (int j = 0; j < kLanes; ++j) sum += sums[j], weight += weighted[j];
  for (int64_t i = whole; i < n; ++i) {
    const float z = (x[i] - max) * inverse_temperature;
    const float e = FastExp(z);
    sum += e;
    weight += e * z;
  }
  *out = {max * inverse_temperature, static_cast<float>(sum), static_cast<float>(weight)};
}

MILLRACE_SIMD_CLONES void GradientRow(float* x, int64_t n, float inverse_temperature, float log_sum,
                                      float scale) {
  for (int64_t i = 0; i < n; ++i) x[i] = scale * FastExp(x[i] * inverse_temperature - log_sum);
}

}  // namespace

void SoftmaxStatistics(const SoftmaxRows& r, float* log_sum, float* logprobs, float* entropy) {
  at::parallel_for(0, r.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* x = r.logits + i * r.vocab;
      RowSums s;
      SumRow(x, r.vocab, r.inverse_temperature, &s);
      const float log = std::log(s.sum);
      log_sum[i] = s.max + log;
      // Differences to the maximum first: small numbers keep their digits.
      logprobs[i] = (x[r.targets[i]] * r.inverse_temperature - s.max) - log;
      entropy[i] = log - s.weighted / s.sum;
    }
  });
}

void SoftmaxGradient(const SoftmaxRows& r, const float* log_sum, const float* grad) {
  at::parallel_for(0, r.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float* x = r.logits + i * r.vocab;
      const float scale = grad[i] * r.inverse_temperature;
      GradientRow(x, r.vocab, r.inverse_temperature, log_sum[i], -scale);
      x[r.targets[i]] += scale;
    }
  });
}

}  // namespace millrace
