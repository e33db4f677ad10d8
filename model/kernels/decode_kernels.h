// Arithmetic of the decode step on the CPU, compiled for several instruction sets; the best one is
// chosen when the program runs. Plain fp32 pointers, no allocation, no threads: callers split the
// work. Every output element is summed in an order that depends on its own row only, so a
// sequence's numbers are the same to the last bit whatever else is in the batch.
#ifndef MILLRACE_MODEL_KERNELS_DECODE_KERNELS_H_
#define MILLRACE_MODEL_KERNELS_DECODE_KERNELS_H_

#include <cstdint>
#include <vector>

namespace millrace::decode {

constexpr int64_t kKvBlock = 16;          // tokens of a cache block
constexpr int64_t kAttentionChunk = 128;  // tokens of one online-softmax step
constexpr int64_t kAttentionRows = 64;    // most query rows of one attention call

// What a product does with its result.
enum class GemmMode { kStore, kAdd, kSwiglu };

// out (rows, cols) from a (rows, k) and one packed panel of weights: both fp32, or both bf16.
struct GemmArgs {
  const float* a = nullptr;
  int64_t lda = 0;
  int64_t rows = 0;
  const float* panel = nullptr;  // (k, 2 * lanes), from pack_panel
  int64_t k = 0;
  const float* bias = nullptr;  // (2 * lanes) or null
  float* out = nullptr;
  int64_t ldo = 0;
  int64_t cols = 0;  // valid ones: at most 2 * lanes, for kSwiglu at most lanes
  GemmMode mode = GemmMode::kStore;
  const uint16_t* a_bf16 = nullptr;      // k rounded up to even, zeros there; lda even
  const uint16_t* panel_bf16 = nullptr;  // (k / 2, 2 * lanes, 2), from pack_panel_bf16
};

// One new token: q and k are normalised (when norms are given) and rotated, q is scaled, k and v go
// into the cache.
struct QkvArgs {
  float* qkv = nullptr;  // (Q + 2K) of one row; q is changed in place
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  const float* q_norm = nullptr;  // (head_dim) or null
  const float* k_norm = nullptr;
  float eps = 0;
  const float* cos = nullptr;  // (head_dim / 2) of the token's position
  const float* sin = nullptr;
  float scale = 1;
  float* keys = nullptr;    // block (kv_heads, head_dim, kKvBlock), at the token's slot
  float* values = nullptr;  // block (kv_heads, kKvBlock, head_dim), at the token's slot
};

// Query rows of one kv head. Rows of one sequence are neighbours; rows of different sequences share
// the blocks of the first `shared_tokens` tokens.
struct AttentionRow {
  const float* q = nullptr;  // (head_dim), scaled
  float* out = nullptr;      // (head_dim)
  int64_t limit = 0;         // tokens it may see
  const int32_t* blocks = nullptr;
  int64_t first = 0;  // what lies before this token isn't seen; at most 0 = everything is
};
struct AttentionArgs {
  const AttentionRow* rows = nullptr;
  int64_t count = 0;              // at most kAttentionRows
  int64_t shared_tokens = 0;      // multiple of kKvBlock, at most every row's limit
  const float* keys = nullptr;    // of the kv head in block 0: (head_dim, kKvBlock)
  const float* values = nullptr;  // (kKvBlock, head_dim)
  int64_t block_stride = 0;       // floats from a block to the next
  int64_t ahead = 0;  // floats to the next kv head's keys and values, which are fetched meanwhile
  int64_t head_dim = 0;
  float* scratch = nullptr;  // kAttentionRows * (kAttentionChunk + 2) floats
};

struct Kernels {
  const char* name;  // avx512_bf16, avx512, avx2, base
  int64_t lanes;     // floats of a vector
  // rows[j] (2 * lanes of them, null = zeros) are k weights each; out[i * 2 * lanes + j] =
  // rows[j][i].
  void (*pack_panel)(const float* const* rows, int64_t k, float* out);
  void (*gemm)(const GemmArgs& args);
  // The same with factors in bf16, rounded to nearest even, and fp32 sums; null where the set has
  // no instruction for it. round_bf16 rounds n numbers and adds a zero where n is odd.
  void (*pack_panel_bf16)(const float* const* rows, int64_t k, uint16_t* out);
  void (*round_bf16)(const float* x, int64_t n, uint16_t* out);
  void (*gemm_bf16)(const GemmArgs& args);
  // out = x / rms(x) * weight.
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* out);
  void (*qkv)(const QkvArgs& args);
  void (*attention)(const AttentionArgs& args);
  float (*max)(const float* x, int64_t n);
  // out[i] = exp(scale * (x[i] - reference)); returns the sum. `out` may be null.
  float (*exp_sum)(const float* x, int64_t n, float scale, float reference, float* out);
};

// The best set that this CPU has.
const Kernels& BestKernels();
// All sets that this CPU has, best first (tests).
std::vector<const Kernels*> AvailableKernels();

}  // namespace millrace::decode

#endif  // MILLRACE_MODEL_KERNELS_DECODE_KERNELS_H_
