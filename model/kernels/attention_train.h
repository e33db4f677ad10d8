// Causal grouped-query attention over packed segments with shared prefixes, forward and backward,
// on the CPU in fp32. No padding and no T x T mask: the work is that of the keys each query sees.
// Scores of a block of queries are recomputed in the backward pass from the saved log-sum (as
// FlashAttention does, Dao et al. 2022).
#ifndef MILLRACE_MODEL_KERNELS_ATTENTION_TRAIN_H_
#define MILLRACE_MODEL_KERNELS_ATTENTION_TRAIN_H_

#include <cstdint>
#include <vector>

#include "model/packed_batch.h"

namespace millrace {

// Segments by tree of prefixes. A tree's keys are packed once for all of its segments, and a tree's
// key gradients are summed by one thread, so results do not depend on the number of threads.
struct TrainAttentionPlan {
  struct Piece {
    int64_t row;     // first packed row
    int64_t local;   // first row within the tree
    int64_t length;  // rows
  };
  struct Node {
    std::vector<Piece> keys;  // what the segment sees, in order of position; itself last
  };
  struct Tree {
    std::vector<Node> nodes;
    int64_t tokens = 0;
  };
  std::vector<Tree> trees;
};
TrainAttentionPlan PlanTrainAttention(const PackedBatch& batch);  // `batch` must be valid

// Row t of qk: heads * head_dim rotated queries, already divided by sqrt(head_dim), then
// kv_heads * head_dim rotated keys; row t of v: kv_heads * head_dim values. Strides in floats. 16
// floats behind the last row must be readable when head_dim is no multiple of 16.
struct TrainAttentionInput {
  const float* qk;
  int64_t qk_stride;
  const float* v;
  int64_t v_stride;
  int64_t heads, kv_heads, head_dim;
  int64_t window = 0;  // keys that a query sees at most, its own counted; 0 = all before it
};

// out (T, heads * head_dim), log_sum (T, heads): log of the sum of exp(score).
void TrainAttentionForward(const TrainAttentionPlan& plan, const TrainAttentionInput& in,
                           float* out, float* log_sum);

struct TrainAttentionGradient {
  const float* out;      // (T, heads * head_dim) of the forward pass
  const float* log_sum;  // (T, heads)
  const float* d_out;    // (T, heads * head_dim), readable as qk is
  float* d_qkv;          // row t, all written: gradients of its queries, keys, values
  int64_t d_qkv_stride;
};
void TrainAttentionBackward(const TrainAttentionPlan& plan, const TrainAttentionInput& in,
                            const TrainAttentionGradient& gradient);

}  // namespace millrace

#endif  // MILLRACE_MODEL_KERNELS_ATTENTION_TRAIN_H_
