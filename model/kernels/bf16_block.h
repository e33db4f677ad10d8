// One thread's share of a product: see bf16_products.h.
#ifndef MILLRACE_MODEL_KERNELS_BF16_BLOCK_H_
#define MILLRACE_MODEL_KERNELS_BF16_BLOCK_H_

#include <cstdint>

#include "model/kernels/bf16_products.h"

namespace millrace::bf16 {

constexpr int64_t kTileRows = 12;     // of the output, held in registers ...
constexpr int64_t kTileColumns = 32;  // ... with two vectors a row
constexpr int64_t kDepth = 384;  // a panel of b, (kDepth, kTileColumns), fits the first-level cache
constexpr int64_t kBlockRows = 192;  // packed rows of a and columns of b fit the second-level cache
constexpr int64_t kBlockColumns = 768;
// 16-bit numbers of scratch memory that Multiply takes, on a cache line.
constexpr int64_t kScratch = (kBlockRows + kBlockColumns) * kDepth;

void Multiply(const Bf16Product& product, uint16_t* scratch);

}  // namespace millrace::bf16

#endif  // MILLRACE_MODEL_KERNELS_BF16_BLOCK_H_
