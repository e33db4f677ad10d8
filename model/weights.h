// The tensors of a decoder as views of one flat fp32 buffer in ParameterShapes() order. q, k, v
// (and gate, up) stand next to each other there, so qkv_weight and gate_up_weight are views too and
// each is one matrix product.
#ifndef MILLRACE_MODEL_WEIGHTS_H_
#define MILLRACE_MODEL_WEIGHTS_H_

#include <ATen/core/Tensor.h>

#include <vector>

namespace millrace {

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
};

struct ModelWeights {
  at::Tensor embed;  // (V, H)
  std::vector<LayerWeights> layers;
  at::Tensor final_norm;  // (H)
  at::Tensor lm_head;     // (V, H); embed when tied
};

}  // namespace millrace

#endif  // MILLRACE_MODEL_WEIGHTS_H_
