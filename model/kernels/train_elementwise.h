// The row-wise parts of a training step on the CPU, forward and backward, fp32, row-major. Rows are
// shared out over LibTorch's threads in fixed blocks, so results do not depend on their number.
// Gradients of parameters (d_weight, ...) are added to.
#ifndef MILLRACE_MODEL_KERNELS_TRAIN_ELEMENTWISE_H_
#define MILLRACE_MODEL_KERNELS_TRAIN_ELEMENTWISE_H_

#include <cstdint>

namespace millrace {

// y = x / sqrt(mean(x^2) + eps) * weight (Zhang & Sennrich 2019). x, y (rows, width).
struct RmsNormShape {
  int64_t rows, width;
  float eps;
};
void RmsNormForward(const RmsNormShape& shape, const float* x, const float* weight, float* y);
// d_x = (add ? d_x : 0) + gradient of x.
void RmsNormBackward(const RmsNormShape& shape, const float* x, const float* weight,
                     const float* d_y, float* d_x, bool add, float* d_weight);

// Norm over head_dim (where q_norm and k_norm are given) and rotation of queries and keys
// (rotate-half; Su et al. 2021); queries are then divided by sqrt(head_dim).
constexpr int64_t kMaxHeadDim = 512;
struct RotaryShape {
  int64_t rows, heads, kv_heads, head_dim;
  const float *q_norm, *k_norm;  // (head_dim), or null
  float eps;
  const int32_t* positions;  // (rows)
  const float* table;        // row p: head_dim / 2 cosines, then as many sines, of position p
  int64_t QkWidth() const { return (heads + kv_heads) * head_dim; }
  int64_t QkvWidth() const { return (heads + 2 * kv_heads) * head_dim; }
};
// qkv (rows, QkvWidth()) -> qk (rows, QkWidth()).
void RotaryForward(const RotaryShape& shape, const float* qkv, float* qk);
// d_qkv (rows, QkvWidth()): on entry the gradients of qk and, last, of the values; its q and k
// parts are replaced by those of qkv's.
void RotaryBackward(const RotaryShape& shape, const float* qkv, float* d_qkv, float* d_q_norm,
                    float* d_k_norm);

// y = silu(gate) * up. gate_up (rows, 2 * width): gate first; y (rows, width).
void SwiGluForward(int64_t rows, int64_t width, const float* gate_up, float* y);
// y is computed again; gate_up is replaced by its gradient.
void SwiGluBackward(int64_t rows, int64_t width, const float* d_y, float* gate_up, float* y);

// sums[c] += sum over rows of x (rows, width).
void AddColumnSums(int64_t rows, int64_t width, const float* x, float* sums);
// x[t] = table[ids[t]]; table (., width).
void GatherRows(int64_t rows, int64_t width, const int32_t* ids, const float* table, float* x);
// table[ids[t]] += x[t], in order of t.
void ScatterAddRows(int64_t rows, int64_t width, const int32_t* ids, const float* x, float* table);

}  // namespace millrace

#endif  // MILLRACE_MODEL_KERNELS_TRAIN_ELEMENTWISE_H_
