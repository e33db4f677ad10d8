#include "model/transformer_fused.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "model/kernels/attention_train.h"
#include "model/kernels/train_elementwise.h"
#include "model/matrix_products.h"

namespace millrace {
namespace {

// Rows that go through a chain of row-wise work and matrix products together: their intermediate
// results stay in the caches.
constexpr int64_t kChunkRows = 1024;
// Kernels may read this many floats past the end of a buffer.
constexpr int64_t kSlack = 64;

// A (rows, columns) matrix over memory that somebody else owns.
at::Tensor Matrix(float* data, int64_t rows, int64_t columns) {
  return at::from_blob(data, {rows, columns}, at::TensorOptions().dtype(at::kFloat));
}

float* Data(const at::Tensor& t) { return t.defined() ? t.data_ptr<float>() : nullptr; }

struct Sizes {
  int64_t tokens, hidden, q, qkv, qk, intermediate, heads, layers;
  Sizes(const ModelConfig& c, int64_t t)
      : tokens(t),
        hidden(c.hidden_size),
        q(c.heads * c.head_dim),
        qkv((c.heads + 2 * c.kv_heads) * c.head_dim),
        qk((c.heads + c.kv_heads) * c.head_dim),
        intermediate(c.intermediate_size),
        heads(c.heads),
        layers(c.layers) {}
  int64_t chunk() const { return std::min(tokens, kChunkRows); }
};

// What the backward pass needs of one layer.
struct LayerActivations {
  float* x;        // (T, H) input
  float* qkv;      // (T, Q + 2K) before norm and rotation
  float* attn;     // (T, Q)
  float* log_sum;  // (T, heads)
  float* middle;   // (T, H) after attention
  float* gate_up;  // (T, 2F); of the current chunk when nothing is kept
  float* next;     // (T, H) output: the next layer's input
};

// Cuts a buffer into matrices.
class Carver {
 public:
  explicit Carver(float* base) : base_(base) {}
  float* Take(int64_t floats) {
    float* p = base_ == nullptr ? nullptr : base_ + at_;
    at_ += (floats + 15) / 16 * 16;
    return p;
  }
  int64_t used() const { return at_; }

 private:
  float* base_;
  int64_t at_ = 0;
};

// Activations of all layers in one buffer. keep = false: one layer's worth, used again and again.
struct Activations {
  std::vector<LayerActivations> layers;
  float* last = nullptr;  // (T, H) before the final norm
  int64_t floats = 0;

  Activations(const Sizes& s, float* base, bool keep) : layers(s.layers) {
    Carver carver(base);
    float* x = carver.Take(s.tokens * s.hidden);
    for (int64_t l = 0; l < s.layers; ++l) {
      if (l > 0 && !keep) {
        layers[l] = layers[0];
        continue;
      }
      layers[l] = {x,
                   carver.Take(s.tokens * s.qkv),
                   carver.Take(s.tokens * s.q),
                   carver.Take(s.tokens * s.heads),
                   carver.Take(s.tokens * s.hidden),
                   carver.Take((keep ? s.tokens : s.chunk()) * 2 * s.intermediate),
                   keep ? carver.Take(s.tokens * s.hidden) : x};
      x = layers[l].next;
    }
    last = x;
    floats = carver.used() + kSlack;
  }
};

struct Scratch {
  float *normed, *gated, *qk;                     // (chunk, H), (chunk, F), (T, Q + K)
  float *d_x, *d_attn, *d_qkv, *d_gated, *d_row;  // (T, H), (T, Q), (T, Q + 2K), (chunk, F), (., H)
  int64_t floats;

  Scratch(const Sizes& s, float* base, bool backward) {
    Carver carver(base);
    normed = carver.Take(s.chunk() * s.hidden);
    gated = carver.Take(s.chunk() * s.intermediate);
    qk = carver.Take(s.tokens * s.qk);
    if (backward) {
      d_x = carver.Take(s.tokens * s.hidden);
      d_attn = carver.Take(s.tokens * s.q);
      d_qkv = carver.Take(s.tokens * s.qkv);
      d_gated = carver.Take(s.chunk() * s.intermediate);
      d_row = carver.Take(s.chunk() * s.hidden);
    }
    floats = carver.used() + kSlack;
  }
};

}  // namespace

struct FusedTransformer::Impl {
  ModelConfig config;
  ModelWeights weights;
  ComputeType compute = ComputeType::kFloat32;
  at::Tensor scratch;        // grown to the largest batch
  at::Tensor spare;          // an activation buffer that no graph holds
  std::vector<float> table;  // rotary: see RotaryShape
  int64_t positions = 0;     // rows of it
  int64_t allocations = 0;
  int64_t activation_bytes = 0;

  at::Tensor Grown(at::Tensor buffer, int64_t floats) {
    if (buffer.defined() && buffer.numel() >= floats) return buffer;
    buffer.reset();  // before the new one, not beside it
    ++allocations;
    return at::empty({floats}, at::TensorOptions().dtype(at::kFloat));
  }

  void GrowTable(const std::vector<int32_t>& wanted) {
    const int64_t need = *std::max_element(wanted.begin(), wanted.end()) + 1;
    if (need <= positions) return;
    const int64_t rows = (need + 255) / 256 * 256, half = config.head_dim / 2;
    table.resize(rows * config.head_dim);
    const std::vector<double> frequencies = RopeFrequencies(config.rope, config.head_dim);
    const double factor = config.rope.attention_factor;
    for (int64_t i = 0; i < half; ++i) {
      for (int64_t p = positions; p < rows; ++p) {
        const double angle = static_cast<double>(p) * frequencies[i];
        table[p * config.head_dim + i] = static_cast<float>(std::cos(angle) * factor);
        table[p * config.head_dim + half + i] = static_cast<float>(std::sin(angle) * factor);
      }
    }
    positions = rows;
  }
};

namespace {

using Impl = FusedTransformer::Impl;

// One forward pass and what its backward pass needs.
struct Run : torch::CustomClassHolder {
  std::shared_ptr<Impl> impl;
  PackedBatch batch;
  TrainAttentionPlan plan;
  ModelWeights gradients;
  at::Tensor buffer;  // activations
  bool keep = false;

  Run(std::shared_ptr<Impl> i, const PackedBatch& b, bool keep_activations)
      : impl(std::move(i)), batch(b), plan(PlanTrainAttention(b)), keep(keep_activations) {
    const Activations sizes(Dims(), nullptr, keep);
    buffer = impl->Grown(std::move(impl->spare), sizes.floats);
    impl->activation_bytes = std::max<int64_t>(impl->activation_bytes, buffer.nbytes());
    impl->spare.reset();
    impl->GrowTable(batch.positions);
  }
  ~Run() override { ReleaseBuffer(); }

  Sizes Dims() const { return Sizes(impl->config, batch.token_ids.size()); }
  void ReleaseBuffer() {
    if (!buffer.defined()) return;
    if (!impl->spare.defined() || impl->spare.numel() < buffer.numel()) {
      impl->spare = std::move(buffer);
    }
    buffer.reset();
  }
};

// The passes over one Run. Member functions by layer; every matrix product goes through Multiply.
class Pass {
 public:
  Pass(Run& run, bool backward)
      : run_(run),
        c_(run.impl->config),
        s_(run.Dims()),
        acts_(s_, run.buffer.data_ptr<float>(), run.keep),
        scratch_(s_, nullptr, backward) {
    run.impl->scratch = run.impl->Grown(std::move(run.impl->scratch), scratch_.floats);
    scratch_ = Scratch(s_, run.impl->scratch.data_ptr<float>(), backward);
  }

  at::Tensor Forward() {
    GatherRows(s_.tokens, s_.hidden, run_.batch.token_ids.data(), Data(run_.impl->weights.embed),
               acts_.layers.empty() ? acts_.last : acts_.layers[0].x);
    for (int64_t l = 0; l < s_.layers; ++l) {
      ForwardAttention(l, run_.impl->weights.layers[l], acts_.layers[l]);
      ForwardMlp(run_.impl->weights.layers[l], acts_.layers[l]);
    }
    at::Tensor out = at::empty({s_.tokens, s_.hidden}, at::kFloat);
    RmsNormForward(Norm(s_.tokens), acts_.last, Data(run_.impl->weights.final_norm), Data(out));
    return out;
  }

  void Backward(const at::Tensor& d_out) {
    RmsNormBackward(Norm(s_.tokens), acts_.last, Data(run_.impl->weights.final_norm), Data(d_out),
                    scratch_.d_x, /*add=*/false, Data(run_.gradients.final_norm));
    for (int64_t l = s_.layers - 1; l >= 0; --l) {
      const LayerWeights& w = run_.impl->weights.layers[l];
      BackwardMlp(w, run_.gradients.layers[l], acts_.layers[l]);
      BackwardAttention(l, run_.gradients.layers[l], acts_.layers[l]);
    }
    ScatterAddRows(s_.tokens, s_.hidden, run_.batch.token_ids.data(), scratch_.d_x,
                   Data(run_.gradients.embed));
  }

 private:
  // out = start + a b
  void Multiply(at::Tensor out, const at::Tensor& start, const at::Tensor& a,
                const at::Tensor& b) const {
    MultiplyInto(run_.impl->compute, std::move(out), start, a, b);
  }
  // out = a w^T (+ bias)
  void Linear(at::Tensor out, const at::Tensor& a, const at::Tensor& w,
              const at::Tensor& bias) const {
    Multiply(std::move(out), bias, a, w.t());
  }
  // out = residual + a w^T (+ bias)
  void ResidualLinear(at::Tensor out, const at::Tensor& residual, const at::Tensor& a,
                      const at::Tensor& w, const at::Tensor& bias) const {
    Multiply(out, residual, a, w.t());
    if (bias.defined()) out.add_(bias);
  }
  // d_weight += d_out^T a
  void AddWeightGradient(const at::Tensor& d_weight, const at::Tensor& d_out,
                         const at::Tensor& a) const {
    Multiply(d_weight, d_weight, d_out.t(), a);
  }

  RmsNormShape Norm(int64_t rows) const {
    return {rows, s_.hidden, static_cast<float>(c_.rms_norm_eps)};
  }
  RotaryShape Rotary(const LayerWeights& w) const {
    return {s_.tokens,
            c_.heads,
            c_.kv_heads,
            c_.head_dim,
            Data(w.q_norm),
            Data(w.k_norm),
            static_cast<float>(c_.rms_norm_eps),
            run_.batch.positions.data(),
            run_.impl->table.data()};
  }
  TrainAttentionInput AttentionInput(int64_t layer, const LayerActivations& a) const {
    return {scratch_.qk, s_.qk,       a.qkv + s_.qk, s_.qkv,
            c_.heads,    c_.kv_heads, c_.head_dim,   c_.Window(layer)};
  }
  // f(first row, rows)
  template <typename F>
  void ForEachChunk(const F& f) const {
    // Chunks of like size: a short last one would waste its matrix products.
    const int64_t chunks = (s_.tokens + kChunkRows - 1) / kChunkRows;
    for (int64_t i = 0; i < chunks; ++i) {
      const int64_t begin = i * s_.tokens / chunks;
      f(begin, (i + 1) * s_.tokens / chunks - begin);
    }
  }

  void ForwardAttention(int64_t layer, const LayerWeights& w, const LayerActivations& a) {
    ForEachChunk([&](int64_t at, int64_t n) {
      RmsNormForward(Norm(n), a.x + at * s_.hidden, Data(w.input_norm), scratch_.normed);
      Linear(Matrix(a.qkv + at * s_.qkv, n, s_.qkv), Matrix(scratch_.normed, n, s_.hidden),
             w.qkv_weight, w.qkv_bias);
    });
    RotaryForward(Rotary(w), a.qkv, scratch_.qk);
    TrainAttentionForward(run_.plan, AttentionInput(layer, a), a.attn, a.log_sum);
    ResidualLinear(Matrix(a.middle, s_.tokens, s_.hidden), Matrix(a.x, s_.tokens, s_.hidden),
                   Matrix(a.attn, s_.tokens, s_.q), w.o_weight, w.o_bias);
  }

  void ForwardMlp(const LayerWeights& w, const LayerActivations& a) {
    ForEachChunk([&](int64_t at, int64_t n) {
      float* gate_up = GateUp(a, at);
      RmsNormForward(Norm(n), a.middle + at * s_.hidden, Data(w.post_norm), scratch_.normed);
      Linear(Matrix(gate_up, n, 2 * s_.intermediate), Matrix(scratch_.normed, n, s_.hidden),
             w.gate_up_weight, {});
      SwiGluForward(n, s_.intermediate, gate_up, scratch_.gated);
      ResidualLinear(Matrix(a.next + at * s_.hidden, n, s_.hidden),
                     Matrix(a.middle + at * s_.hidden, n, s_.hidden),
                     Matrix(scratch_.gated, n, s_.intermediate), w.down_weight, {});
    });
  }

  // Gradient of the layer's output in scratch_.d_x -> gradient of `middle`.
  void BackwardMlp(const LayerWeights& w, const LayerWeights& g, const LayerActivations& a) {
    ForEachChunk([&](int64_t at, int64_t n) {
      float* gate_up = GateUp(a, at);
      float* d_x = scratch_.d_x + at * s_.hidden;
      const at::Tensor d_out = Matrix(d_x, n, s_.hidden);
      const at::Tensor gated = Matrix(scratch_.gated, n, s_.intermediate);
      at::Tensor d_gated = Matrix(scratch_.d_gated, n, s_.intermediate);
      Multiply(d_gated, {}, d_out, w.down_weight);
      SwiGluBackward(n, s_.intermediate, scratch_.d_gated, gate_up, scratch_.gated);
      AddWeightGradient(g.down_weight, d_out, gated);
      const at::Tensor d_gate_up = Matrix(gate_up, n, 2 * s_.intermediate);
      BackwardNormedLinear({w.post_norm, w.gate_up_weight, g.post_norm, g.gate_up_weight},
                           a.middle + at * s_.hidden, d_gate_up, d_x);
    });
  }

  void BackwardAttention(int64_t layer, const LayerWeights& g, const LayerActivations& a) {
    const LayerWeights& w = run_.impl->weights.layers[layer];
    const at::Tensor d_middle = Matrix(scratch_.d_x, s_.tokens, s_.hidden);
    at::Tensor d_attn = Matrix(scratch_.d_attn, s_.tokens, s_.q);
    Multiply(d_attn, {}, d_middle, w.o_weight);
    AddWeightGradient(g.o_weight, d_middle, Matrix(a.attn, s_.tokens, s_.q));
    if (g.o_bias.defined()) AddColumnSums(s_.tokens, s_.hidden, scratch_.d_x, Data(g.o_bias));
    RotaryForward(Rotary(w), a.qkv, scratch_.qk);
    TrainAttentionBackward(run_.plan, AttentionInput(layer, a),
                           {a.attn, a.log_sum, scratch_.d_attn, scratch_.d_qkv, s_.qkv});
    RotaryBackward(Rotary(w), a.qkv, scratch_.d_qkv, Data(g.q_norm), Data(g.k_norm));
    if (g.qkv_bias.defined()) AddColumnSums(s_.tokens, s_.qkv, scratch_.d_qkv, Data(g.qkv_bias));
    ForEachChunk([&](int64_t at, int64_t n) {
      BackwardNormedLinear({w.input_norm, w.qkv_weight, g.input_norm, g.qkv_weight},
                           a.x + at * s_.hidden, Matrix(scratch_.d_qkv + at * s_.qkv, n, s_.qkv),
                           scratch_.d_x + at * s_.hidden);
    });
  }

  struct NormedLinear {
    const at::Tensor &norm, &weight, &d_norm, &d_weight;
  };
  // Backward of weight . RmsNorm(x): adds to d_x. d_out (n, .).
  void BackwardNormedLinear(const NormedLinear& p, const float* x, const at::Tensor& d_out,
                            float* d_x) {
    const int64_t n = d_out.size(0);
    RmsNormForward(Norm(n), x, Data(p.norm), scratch_.normed);
    AddWeightGradient(p.d_weight, d_out, Matrix(scratch_.normed, n, s_.hidden));
    at::Tensor d_normed = Matrix(scratch_.d_row, n, s_.hidden);
    Multiply(d_normed, {}, d_out, p.weight);
    RmsNormBackward(Norm(n), x, Data(p.norm), scratch_.d_row, d_x, /*add=*/true, Data(p.d_norm));
  }

  float* GateUp(const LayerActivations& a, int64_t row) const {
    return run_.keep ? a.gate_up + row * 2 * s_.intermediate : a.gate_up;
  }

  Run& run_;
  const ModelConfig& c_;
  const Sizes s_;
  const Activations acts_;
  Scratch scratch_;
};

class FusedNode : public torch::autograd::Function<FusedNode> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& anchor,
                            const c10::intrusive_ptr<Run>& run) {
    context->saved_data["run"] = c10::IValue::make_capsule(run);
    at::AutoDispatchBelowADInplaceOrView guard;
    return Pass(*run, /*backward=*/false).Forward();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto run = c10::static_intrusive_pointer_cast<Run>(context->saved_data["run"].toCapsule());
    TORCH_CHECK(run->buffer.defined(), "the backward pass of a training forward can run only once");
    at::AutoDispatchBelowADInplaceOrView guard;
    const at::Tensor d_out = gradients[0].contiguous();
    Pass(*run, /*backward=*/true).Backward(d_out);
    run->ReleaseBuffer();
    return {at::Tensor(), at::Tensor()};
  }
};

}  // namespace

FusedTransformer::FusedTransformer(const ModelConfig& config, const ModelWeights& weights)
    : impl_(std::make_shared<Impl>()) {
  impl_->config = config;
  impl_->weights = weights;
}
FusedTransformer::~FusedTransformer() = default;

void FusedTransformer::set_compute_type(ComputeType type) { impl_->compute = type; }

at::Tensor FusedTransformer::Forward(const PackedBatch& batch) {
  Run run(impl_, batch, /*keep_activations=*/false);
  at::AutoDispatchBelowADInplaceOrView guard;
  return Pass(run, /*backward=*/false).Forward();
}

at::Tensor FusedTransformer::ForwardWithGradient(const PackedBatch& batch,
                                                 const ModelWeights& gradients,
                                                 const at::Tensor& anchor) {
  auto run = c10::make_intrusive<Run>(impl_, batch, /*keep_activations=*/true);
  run->gradients = gradients;
  return FusedNode::apply(anchor, run);
}

int64_t FusedTransformer::buffer_bytes() const {
  const int64_t scratch = impl_->scratch.defined() ? impl_->scratch.nbytes() : 0;
  return scratch + impl_->activation_bytes;
}
int64_t FusedTransformer::buffer_allocations() const { return impl_->allocations; }

}  // namespace millrace
