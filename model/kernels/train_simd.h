// What the training kernels share: clones of a function for AVX-512, AVX2 and plain x86-64, chosen
// when the program is loaded, and an exponential that compilers vectorise.
#ifndef MILLRACE_MODEL_KERNELS_TRAIN_SIMD_H_
#define MILLRACE_MODEL_KERNELS_TRAIN_SIMD_H_

#include <bit>
#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MILLRACE_SIMD_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define MILLRACE_SIMD_CLONES
#endif
// For helpers of such functions, and for their lambdas (behind the parameter list): they must be
// compiled into each clone, or they run as plain x86-64.
#define MILLRACE_SIMD_INLINE inline __attribute__((always_inline))
#define MILLRACE_SIMD_LAMBDA __attribute__((always_inline))

namespace millrace {

// e^x to 2 ulp or so for x <= 88; 0 below -87.3. Cephes' expf polynomial (S. Moshier, "Methods and
// Programs for Mathematical Functions", 1989) on the remainder of x / ln 2.
MILLRACE_SIMD_INLINE float FastExp(float x) {
  const float bounded = x < -87.3f ? -87.3f : (x > 88.0f ? 88.0f : x);
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const float shifted = bounded * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  const int32_t exponent = (std::bit_cast<int32_t>(shifted) - 0x4B400000 + 127) << 23;
  const float result = p * std::bit_cast<float>(exponent);
  return x < -87.3f ? 0.0f : result;
}

constexpr int64_t kSimdLanes = 16;  // floats that the kernels work on side by side

// Sum and maximum of kSimdLanes values; overwrites them.
MILLRACE_SIMD_INLINE float SumLanes(float* lanes) {
  for (int64_t w = kSimdLanes / 2; w > 0; w /= 2) {
    for (int64_t j = 0; j < w; ++j) lanes[j] += lanes[j + w];
  }
  return lanes[0];
}
MILLRACE_SIMD_INLINE float MaxLanes(float* lanes) {
  for (int64_t w = kSimdLanes / 2; w > 0; w /= 2) {
    for (int64_t j = 0; j < w; ++j) lanes[j] = lanes[j] > lanes[j + w] ? lanes[j] : lanes[j + w];
  }
  return lanes[0];
}

}  // namespace millrace

#endif  // MILLRACE_MODEL_KERNELS_TRAIN_SIMD_H_
