// The mixture-of-experts MLP of a layer in plain ATen operators, with autograd: each token goes
// through the experts_per_token experts that the router scores highest (Shazeer et al. 2017;
// routing as Qwen3-MoE has it). Internal to the forwards.
#ifndef MILLRACE_MODEL_EXPERTS_H_
#define MILLRACE_MODEL_EXPERTS_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/model_config.h"
#include "model/weights.h"

namespace millrace {

struct ExpertsOutput {
  at::Tensor out;            // (M, H)
  at::Tensor router_logits;  // (M, experts)
};

// x (M, H), normed. Tokens are grouped by expert, so each expert is two matrix products; the
// grouping is done on the host, which waits for the device once. Throws what LibTorch throws.
ExpertsOutput MixtureOfExperts(const ModelConfig& config, const LayerWeights& weights,
                               const at::Tensor& x);

// Load-balancing loss over all layers' router logits, each (M, experts): experts times the sum over
// experts of the share of choices times the mean probability (Fedus et al. 2021, equations 4 to 6,
// summed over the experts_per_token choices as transformers does). A scalar with autograd.
at::Tensor RouterBalanceLoss(const ModelConfig& config,
                             const std::vector<at::Tensor>& router_logits);

}  // namespace millrace

#endif  // MILLRACE_MODEL_EXPERTS_H_
