// The decode forward in plain ATen operators: any device, and the yardstick that the fused CPU path
// is tested against. Internal to Decoder.
#ifndef MILLRACE_MODEL_DECODER_OPERATORS_H_
#define MILLRACE_MODEL_DECODER_OPERATORS_H_

#include <ATen/core/Tensor.h>

#include "absl/types/span.h"
#include "model/kernels/decode_step.h"
#include "model/kv_cache.h"
#include "model/model_config.h"
#include "model/weights.h"

namespace millrace {

// Logits (R, V) on the weights' device, as decode::FusedStep::Run gives them. Uploads go before the
// first layer and nothing waits for the device. Throws what LibTorch throws.
at::Tensor DecodeWithOperators(const ModelConfig& config, const ModelWeights& weights,
                               KvCache* cache, absl::Span<const decode::StepSequence> sequences);

}  // namespace millrace

#endif  // MILLRACE_MODEL_DECODER_OPERATORS_H_
