// What the kernels for AVX512_BF16 share; only for files that are compiled for it.
#ifndef MILLRACE_MODEL_KERNELS_BF16_PAIRS_H_
#define MILLRACE_MODEL_KERNELS_BF16_PAIRS_H_

#include <immintrin.h>

#include <cstdint>

namespace millrace::bf16 {

// A mask of the first n of 16 lanes; n may be below 0 and above 16.
inline __attribute__((always_inline)) __mmask16 FirstLanes(int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xFFFF : n <= 0 ? 0 : (1 << n) - 1);
}

// x[0] .. x[31] rounded to bf16, as the sixteen pairs of neighbours that the dot-product
// instruction takes; zeros from x[n], which isn't read.
inline __attribute__((always_inline)) __m512i Pairs(const float* x, int64_t n) {
  const __m512 low = _mm512_maskz_loadu_ps(FirstLanes(n), x);
  const __m512 high = _mm512_maskz_loadu_ps(FirstLanes(n - 16), x + 16);
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

}  // namespace millrace::bf16

#endif  // MILLRACE_MODEL_KERNELS_BF16_PAIRS_H_
