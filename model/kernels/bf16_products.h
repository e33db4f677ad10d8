// Matrix products of fp32 matrices whose factors are rounded to bfloat16 (to nearest even) and
// whose sums are fp32: what AVX512_BF16's dot-product instruction does, at twice the rate of fp32.
// Factors are rounded while they are packed for the caches, so no bfloat16 copy of anything is
// kept.
//
// Loop order and packing follow K. Goto, R. van de Geijn, "Anatomy of High-Performance Matrix
// Multiplication" (ACM TOMS 34, 2008).
#ifndef MILLRACE_MODEL_KERNELS_BF16_PRODUCTS_H_
#define MILLRACE_MODEL_KERNELS_BF16_PRODUCTS_H_

#include <cstdint>

namespace millrace {

// Element (i, j) is data[i * row + j * column]; one of the strides is 1.
struct StridedMatrix {
  const float* data = nullptr;
  int64_t row = 0, column = 1;
};

// out = start + a b
struct Bf16Product {
  int64_t m = 0, n = 0, k = 0;
  StridedMatrix a;       // (m, k)
  StridedMatrix b;       // (k, n)
  float* out = nullptr;  // (m, n), rows out_row apart; may not overlap a or b
  int64_t out_row = 0;
  const float* start = nullptr;  // (m, n), rows start_row apart (0: one row for all); may be `out`;
  int64_t start_row = 0;         // null = zeros
};

// Whether this CPU has the instruction (and this build its kernel).
bool HasBf16Products();

// Where HasBf16Products(). Splits the work over LibTorch's threads; an element's sum does not
// depend on how many there are. Thread-safe.
void MultiplyBf16(const Bf16Product& product);

}  // namespace millrace

#endif  // MILLRACE_MODEL_KERNELS_BF16_PRODUCTS_H_
