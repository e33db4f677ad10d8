// One weight matrix laid out for the decode kernels: panels of 2 * lanes output features, each (k,
// 2 * lanes) contiguous, so that a product streams it once from start to end; in fp32 or rounded to
// bf16.
#ifndef MILLRACE_MODEL_KERNELS_DECODE_WEIGHTS_H_
#define MILLRACE_MODEL_KERNELS_DECODE_WEIGHTS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "model/compute_type.h"
#include "model/kernels/decode_kernels.h"
#include "model/kernels/decode_memory.h"
#include "model/kernels/decode_pool.h"

namespace millrace::decode {

class PackedMatrix {
 public:
  // A weight (n, k). `swiglu`: rows 0 .. n/2 are the gate and n/2 .. n the linear half of a SwiGLU
  // layer, and Multiply gives silu(gate) * linear, n/2 columns. kBfloat16 only where BestKernels()
  // have it.
  struct Shape {
    int64_t n, k;
    bool swiglu;
    ComputeType type;
  };
  // In memory of `arena`, which must outlive it; contents undefined until Pack.
  PackedMatrix(const Shape& shape, HugeArena* arena);
  // What it takes of the arena.
  static int64_t Bytes(const Shape& shape);
  // Rows of a weight that lie together: (count, k) row-major, and their bias (count) or null.
  struct Rows {
    const float* weight;
    const float* bias;
    int64_t count;
  };
  // The weight is `parts` below each other (those of q, k and v), n rows in all; every one has a
  // bias or none has. One loop of `worker`'s program.
  void Pack(PoolWorker& worker, absl::Span<const Rows> parts);

  struct Product {
    const float* a = nullptr;     // (rows, k)
    uint16_t* rounded = nullptr;  // kBfloat16: scratch memory, (rows, k + 1)
    int64_t lda = 0;
    int64_t rows = 0;
    float* out = nullptr;  // (rows, n or n/2)
    int64_t ldo = 0;
    bool add = false;  // out += instead of out =
  };
  // out = a * weight^T + bias. One loop of `worker`'s program, with kBfloat16 two.
  void Multiply(PoolWorker& worker, const Product& product) const;

 private:
  const Kernels* kernels_;
  bool bf16() const { return shape_.type == ComputeType::kBfloat16; }
  // Floats of memory that a panel takes.
  int64_t PanelFloats() const;

  Shape shape_;
  int64_t panel_outputs_;  // output columns of one panel
  int64_t panels_;
  float* data_;              // panels one after the other, of floats or of bf16
  std::vector<float> bias_;  // panels * 2 * lanes; empty = none
  bool has_bias_ = false;
};

}  // namespace millrace::decode

#endif  // MILLRACE_MODEL_KERNELS_DECODE_WEIGHTS_H_
