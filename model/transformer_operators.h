// The training forward of a decoder in plain ATen operators, with autograd: any device. Internal to
// Transformer; the yardstick that the fused CPU path is tested against.
#ifndef MILLRACE_MODEL_TRANSFORMER_OPERATORS_H_
#define MILLRACE_MODEL_TRANSFORMER_OPERATORS_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/model_config.h"
#include "model/packed_batch.h"
#include "model/weights.h"

namespace millrace {

// `batch` must be valid. Returns hidden states after the final norm (T, H) on the device of
// `weights`. Moves the batch to the device in a fixed number of transfers and waits for the device
// only in layers with experts (model/experts.h). Throws what LibTorch throws. `router_logits`, when
// given, gets (T, experts) of each layer with experts.
at::Tensor ForwardWithOperators(const ModelConfig& config, const ModelWeights& weights,
                                const PackedBatch& batch,
                                std::vector<at::Tensor>* router_logits = nullptr);

}  // namespace millrace

#endif  // MILLRACE_MODEL_TRANSFORMER_OPERATORS_H_
