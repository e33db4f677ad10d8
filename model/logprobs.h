// Log-probabilities of chosen tokens without ever holding (N, V) logits: they are made for a chunk
// of rows at a time, in the forward and again in the backward pass.
#ifndef MILLRACE_MODEL_LOGPROBS_H_
#define MILLRACE_MODEL_LOGPROBS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "model/compute_type.h"

namespace millrace {

struct LogprobOptions {
  double temperature = 1;
  int64_t chunk = 1024;  // rows of (chunk, V) logits that exist at a time
  ComputeType compute = ComputeType::kFloat32;
};
struct LogprobResult {
  // (N) of softmax(logits / temperature), differentiable in hidden and lm_head.
  at::Tensor logprobs;
  at::Tensor entropy;  // (N) of the same distribution, natural log; detached
};
// hidden (N, H), lm_head (V, H), targets (N) int64, all on one device. The gradient of lm_head is
// added in place to lm_head.grad() when that is defined (Transformer::lm_head(): flat_gradients()),
// else returned to autograd. Throws c10::Error on mismatched shapes.
LogprobResult SelectedLogprobs(const at::Tensor& hidden, const at::Tensor& lm_head,
                               const at::Tensor& targets, const LogprobOptions& options);

}  // namespace millrace

#endif  // MILLRACE_MODEL_LOGPROBS_H_
