// The tensors of a decoder as views of one flat fp32 buffer in ParameterShapes() order. q, k, v
// (and gate, up) stand next to each other there, so qkv_weight and gate_up_weight are views too and
// each is one matrix product.
#ifndef MILLRACE_MODEL_WEIGHTS_H_
#define MILLRACE_MODEL_WEIGHTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "model/model_config.h"

namespace millrace {

// F expert_intermediate_size.
struct ExpertWeights {
  at::Tensor gate_up_weight;  // (2F, H)
  at::Tensor down_weight;     // (H, F)
};

// H hidden, Q = heads * head_dim, K = kv_heads * head_dim, F intermediate. Undefined where the
// architecture has none.
struct LayerWeights {
  at::Tensor input_norm;      // (H)
  at::Tensor qkv_weight;      // (Q + 2K, H)
  at::Tensor qkv_bias;        // (Q + 2K)
  at::Tensor q_norm, k_norm;  // (head_dim)
  at::Tensor o_weight;        // (H, Q)
  at::Tensor o_bias;          // (H)
  at::Tensor post_norm;       // (H)
  at::Tensor gate_up_weight;  // (2F, H)
  at::Tensor down_weight;     // (H, F)
  // Instead of gate_up_weight and down_weight in a layer with experts.
  at::Tensor router;  // (experts, H)
  std::vector<ExpertWeights> experts;
};

struct ModelWeights {
  at::Tensor embed;  // (V, H)
  std::vector<LayerWeights> layers;
  at::Tensor final_norm;  // (H)
  at::Tensor lm_head;     // (V, H); embed when tied
};

// Number of scalars in all parameters.
int64_t ParameterCount(const ModelConfig& config);
// Views of flat (P), which has ParameterCount(config) elements in ParameterShapes() order.
ModelWeights MakeWeightViews(const ModelConfig& config, const at::Tensor& flat);
// Calls `f` on every defined tensor of the two in step; lm_head only when it is not the embedding.
void ForEachWeight(ModelWeights& a, ModelWeights& b,
                   const std::function<void(at::Tensor&, at::Tensor&)>& f);

}  // namespace millrace

#endif  // MILLRACE_MODEL_WEIGHTS_H_
