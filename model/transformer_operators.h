// The training forward of a decoder in plain ATen operators, with autograd: any device. Internal to
// Transformer; the yardstick that the fused CPU path is tested against.
#ifndef MILLRACE_MODEL_TRANSFORMER_OPERATORS_H_
#define MILLRACE_MODEL_TRANSFORMER_OPERATORS_H_

#include <ATen/core/Tensor.h>

#include "model/model_config.h"
#include "model/packed_batch.h"
#include "model/weights.h"

namespace millrace {

// `batch` must be valid. Returns hidden states after the final norm (T, H) on the device of
// `weights`. Moves the batch to the device in a fixed number of transfers and never waits for the
// device. Throws what LibTorch throws.
at::Tensor ForwardWithOperators(const ModelConfig& config, const ModelWeights& weights,
                                const PackedBatch& batch);

}  // namespace millrace

#endif  // MILLRACE_MODEL_TRANSFORMER_OPERATORS_H_
