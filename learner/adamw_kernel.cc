#include "learner/adamw_kernel.h"

#include <cmath>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MILLRACE_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MILLRACE_CLONES
#endif

namespace millrace {

MILLRACE_CLONES void AdamWUpdate(const AdamWConstants& c, float* __restrict p, float* __restrict g,
                                 float* __restrict m, float* __restrict v, int64_t n) {
  const AdamWConstants k = c;
  for (int64_t i = 0; i < n; ++i) {
    const float gradient = g[i] * k.clip;
    const float first = k.beta1 * m[i] + k.one_minus_beta1 * gradient;
    const float second = k.beta2 * v[i] + k.one_minus_beta2 * gradient * gradient;
    m[i] = first;
    v[i] = second;
    p[i] = p[i] * k.keep - k.step * first / (std::sqrt(second) * k.inverse_root + k.eps);
    g[i] = 0;
  }
}

MILLRACE_CLONES double SumOfSquares(const float* g, int64_t n) {
  constexpr int64_t kLanes = 16;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) {
      const double value = g[i + k];
      lanes[k] += value * value;
    }
  }
  double sum = 0;
  for (double lane : lanes) sum += lane;
  for (; i < n; ++i) sum += static_cast<double>(g[i]) * g[i];
  return sum;
}

}  // namespace millrace
