#include "model/weights.h"

#include <ATen/core/Tensor.h>

namespace millrace {
namespace {

// Cuts views off the front of a flat buffer.
class Cutter {
 public:
  explicit Cutter(const at::Tensor& flat) : flat_(flat) {}
  at::Tensor Take(at::IntArrayRef shape) {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    at::Tensor view = flat_.narrow(0, at_, n).view(shape);
    at_ += n;
    return view;
  }
  int64_t at() const { return at_; }

 private:
  const at::Tensor& flat_;
  int64_t at_ = 0;
};

}  // namespace

int64_t ParameterCount(const ModelConfig& config) {
  int64_t n = 0;
  for (const ParameterShape& p : ParameterShapes(config)) n += p.Elements();
  return n;
}

ModelWeights MakeWeightViews(const ModelConfig& c, const at::Tensor& flat) {
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  Cutter cut(flat);
  ModelWeights w;
  w.embed = cut.Take({c.vocab_size, c.hidden_size});
  w.layers.resize(c.layers);
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    LayerWeights& l = w.layers[layer];
    l.input_norm = cut.Take({c.hidden_size});
    l.qkv_weight = cut.Take({q + 2 * kv, c.hidden_size});
    if (c.qkv_bias) l.qkv_bias = cut.Take({q + 2 * kv});
    l.o_weight = cut.Take({c.hidden_size, q});
    if (c.o_bias) l.o_bias = cut.Take({c.hidden_size});
    if (c.qk_norm) {
      l.q_norm = cut.Take({c.head_dim});
      l.k_norm = cut.Take({c.head_dim});
    }
    l.post_norm = cut.Take({c.hidden_size});
    if (!c.HasExperts(layer)) {
      l.gate_up_weight = cut.Take({2 * c.intermediate_size, c.hidden_size});
      l.down_weight = cut.Take({c.hidden_size, c.intermediate_size});
      continue;
    }
    l.router = cut.Take({c.experts, c.hidden_size});
    l.experts.resize(c.experts);
    for (ExpertWeights& e : l.experts) {
      e.gate_up_weight = cut.Take({2 * c.expert_intermediate_size, c.hidden_size});
      e.down_weight = cut.Take({c.hidden_size, c.expert_intermediate_size});
    }
  }
  w.final_norm = cut.Take({c.hidden_size});
  w.lm_head = c.tie_word_embeddings ? w.embed : cut.Take({c.vocab_size, c.hidden_size});
  TORCH_CHECK(cut.at() == flat.numel(), "weight views cover ", cut.at(), " of ", flat.numel(),
              " parameters");
  return w;
}

void ForEachWeight(ModelWeights& a, ModelWeights& b,
                   const std::function<void(at::Tensor&, at::Tensor&)>& f) {
  const auto call = [&](at::Tensor& x, at::Tensor& y) {
    if (x.defined()) f(x, y);
  };
  call(a.embed, b.embed);
  for (size_t i = 0; i < a.layers.size(); ++i) {
    LayerWeights &x = a.layers[i], &y = b.layers[i];
    call(x.input_norm, y.input_norm);
    call(x.qkv_weight, y.qkv_weight);
    call(x.qkv_bias, y.qkv_bias);
    call(x.q_norm, y.q_norm);
    call(x.k_norm, y.k_norm);
    call(x.o_weight, y.o_weight);
    call(x.o_bias, y.o_bias);
    call(x.post_norm, y.post_norm);
    call(x.gate_up_weight, y.gate_up_weight);
    call(x.down_weight, y.down_weight);
    call(x.router, y.router);
    for (size_t e = 0; e < x.experts.size(); ++e) {
      call(x.experts[e].gate_up_weight, y.experts[e].gate_up_weight);
      call(x.experts[e].down_weight, y.experts[e].down_weight);
    }
  }
  call(a.final_norm, b.final_norm);
  if (a.lm_head.is_same(a.embed)) {
    b.lm_head = b.embed;
  } else {
    call(a.lm_head, b.lm_head);
  }
}

}  // namespace millrace
