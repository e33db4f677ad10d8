// The training forward and backward of a decoder on the CPU: one autograd node for the whole stack,
// whose backward adds straight to the flat gradient buffer. Row-wise work is fused, matrix products
// go through LibTorch into buffers that are kept from step to step, and what is cheap is computed
// again in the backward pass rather than stored. Internal to Transformer. Not thread-safe.
#ifndef MILLRACE_MODEL_TRANSFORMER_FUSED_H_
#define MILLRACE_MODEL_TRANSFORMER_FUSED_H_

#include <ATen/core/Tensor.h>

#include <memory>

#include "model/compute_type.h"
#include "model/model_config.h"
#include "model/packed_batch.h"
#include "model/weights.h"

namespace millrace {

class FusedTransformer {
 public:
  FusedTransformer(const ModelConfig& config, const ModelWeights& weights);
  ~FusedTransformer();
  void set_compute_type(ComputeType type);  // of the passes that begin later; fp32 at first

  // Hidden states after the final norm (T, H), without autograd. `batch` must be valid.
  at::Tensor Forward(const PackedBatch& batch);
  // The same as an autograd node; its backward adds to `gradients`, views of the flat gradient
  // buffer, and may run once. `anchor` is any leaf that requires a gradient (it gets none from
  // here); without one autograd would not record the node.
  at::Tensor ForwardWithGradient(const PackedBatch& batch, const ModelWeights& gradients,
                                 const at::Tensor& anchor);

  // Bytes of the buffers held for activations and scratch.
  int64_t buffer_bytes() const;
  // Buffers allocated since construction: stands still once the largest batch has been seen.
  int64_t buffer_allocations() const;

  struct Impl;  // of transformer_fused.cc alone

 private:
  std::shared_ptr<Impl> impl_;  // a recorded node keeps it alive
};

}  // namespace millrace

#endif  // MILLRACE_MODEL_TRANSFORMER_FUSED_H_
