#include "model/decoder_operators.h"

#include <ATen/ATen.h>
#include <ATen/TensorIndexing.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "model/experts.h"

namespace millrace {
namespace {

using at::indexing::Slice;
using decode::StepSequence;

// Query rows that attend together: the new tokens of one sequence, or all sequences that have one.
struct Part {
  int64_t first = 0, sequences = 0, tokens = 0;  // rows first .. first + sequences * tokens
  at::Tensor blocks;  // (sequences * block count) int64, padded with block 0
  at::Tensor hidden;  // (sequences, 1, 1, tokens, length) bool: not to be seen
  at::Tensor far;     // the same for layers with a window; undefined when there are none
};

struct Inputs {
  at::Tensor ids, block, slot;  // (M) int64: of each new token
  at::Tensor cos, sin;          // (M, 1, head_dim / 2)
  at::Tensor logit_rows;        // (R) int64, rows in the order of `order`
  std::vector<Part> parts;
};

at::Tensor Longs(const std::vector<int64_t>& values) {
  return at::tensor(values, at::TensorOptions().dtype(at::kLong));
}

struct Target {
  at::Device device;
  int64_t window;  // of the layers that have one; 0 = none
};

// One part from sequences that all have as many new tokens.
Part MakePart(absl::Span<const StepSequence> sequences, int64_t first, const Target& target) {
  const at::Device device = target.device;
  const int64_t window = target.window;
  Part part;
  part.first = first;
  part.sequences = static_cast<int64_t>(sequences.size());
  part.tokens = static_cast<int64_t>(sequences[0].tokens.size());
  size_t blocks = 0;
  for (const StepSequence& s : sequences) blocks = std::max(blocks, s.kv->blocks().size());
  std::vector<int64_t> table;
  const int64_t length = static_cast<int64_t>(blocks) * KvCache::kBlockTokens;
  at::Tensor hidden = at::ones({part.sequences, 1, 1, part.tokens, length}, at::kBool);
  at::Tensor far = window > 0 ? hidden.clone() : at::Tensor();
  bool* h = hidden.data_ptr<bool>();
  bool* f = window > 0 ? far.data_ptr<bool>() : nullptr;
  for (const StepSequence& s : sequences) {
    for (size_t b = 0; b < blocks; ++b) {
      table.push_back(b < s.kv->blocks().size() ? s.kv->blocks()[b] : s.kv->blocks()[0]);
    }
    for (int64_t t = 0; t < part.tokens; ++t, h += length) {
      const int64_t seen = s.kv->length() - part.tokens + t + 1;
      std::fill(h, h + seen, false);
      if (f == nullptr) continue;
      std::fill(f + std::max<int64_t>(0, seen - window), f + seen, false);
      f += length;
    }
  }
  part.blocks = Longs(table).to(device, /*non_blocking=*/true);
  part.hidden = hidden.to(device, /*non_blocking=*/true);
  if (window > 0) part.far = far.to(device, /*non_blocking=*/true);
  return part;
}

Inputs MakeInputs(const ModelConfig& config, absl::Span<const StepSequence> sequences,
                  at::Device device) {
  // Single tokens first, so that they form one part.
  std::vector<int64_t> order;
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t i = 0; i < sequences.size(); ++i) {
      if ((sequences[i].tokens.size() == 1) == (pass == 0)) order.push_back(i);
    }
  }
  Inputs in;
  const Target target = {device, config.sliding_window};
  std::vector<int64_t> ids, block, slot, position, last(sequences.size());
  std::vector<StepSequence> single;
  for (int64_t i : order) {
    const StepSequence& s = sequences[i];
    const int64_t count = static_cast<int64_t>(s.tokens.size());
    if (count == 1) {
      single.push_back(s);
    } else {
      in.parts.push_back(MakePart({&s, 1}, static_cast<int64_t>(ids.size()), target));
    }
    for (int64_t t = 0; t < count; ++t) {
      const int64_t p = s.kv->length() - count + t;
      ids.push_back(s.tokens[t]);
      position.push_back(p);
      block.push_back(s.kv->blocks()[p / KvCache::kBlockTokens]);
      slot.push_back(p % KvCache::kBlockTokens);
    }
    last[i] = static_cast<int64_t>(ids.size()) - 1;
  }
  if (!single.empty()) in.parts.push_back(MakePart(single, 0, target));
  std::vector<int64_t> logit_rows;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].want_logits) logit_rows.push_back(last[i]);
  }
  const int64_t rows = static_cast<int64_t>(ids.size()), half = config.head_dim / 2;
  at::Tensor angles = at::empty({2, rows, 1, half}, at::kFloat);
  float* cos = angles.data_ptr<float>();
  float* sin = cos + rows * half;
  const std::vector<double> frequencies = RopeFrequencies(config.rope, config.head_dim);
  const double factor = config.rope.attention_factor;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position[r]) * frequencies[i];
      cos[r * half + i] = static_cast<float>(std::cos(angle) * factor);
      sin[r * half + i] = static_cast<float>(std::sin(angle) * factor);
    }
  }
  angles = angles.to(device, /*non_blocking=*/true);
  in.cos = angles.select(0, 0);
  in.sin = angles.select(0, 1);
  const at::Tensor index = at::stack({Longs(ids), Longs(block), Longs(slot)}).to(device, true);
  in.ids = index.select(0, 0);
  in.block = index.select(0, 1);
  in.slot = index.select(0, 2);
  in.logit_rows = Longs(logit_rows).to(device, /*non_blocking=*/true);
  return in;
}

at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * (x.square().mean(-1, /*keepdim=*/true) + eps).rsqrt() * weight;
}

at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor y = at::mm(x, weight.t());
  return bias.defined() ? y + bias : y;
}

at::Tensor Rotate(const at::Tensor& x, const Inputs& in) {
  const std::vector<at::Tensor> h = x.chunk(2, -1);
  return at::cat({h[0] * in.cos - h[1] * in.sin, h[1] * in.cos + h[0] * in.sin}, -1);
}

// q (M, heads, head_dim) against the cached keys and values of one layer; (M, heads * head_dim).
at::Tensor Attend(const ModelConfig& config, const Inputs& in, const at::Tensor& q, KvCache* cache,
                  int64_t layer) {
  const at::Tensor &keys = cache->keys(layer), &values = cache->values(layer);
  const int64_t kv = config.kv_heads, per_kv = config.heads / kv, d = config.head_dim;
  at::Tensor out = at::empty_like(q);
  for (const Part& part : in.parts) {
    const int64_t n = part.sequences, t = part.tokens;
    const int64_t length = part.blocks.size(0) / n * KvCache::kBlockTokens;
    const at::Tensor k = keys.index_select(0, part.blocks)
                             .view({n, -1, kv, d, KvCache::kBlockTokens})
                             .permute({0, 2, 3, 1, 4})
                             .reshape({n, kv, 1, d, length});
    const at::Tensor v = values.index_select(0, part.blocks)
                             .view({n, -1, kv, KvCache::kBlockTokens, d})
                             .permute({0, 2, 1, 3, 4})
                             .reshape({n, kv, 1, length, d});
    const at::Tensor rows = q.narrow(0, part.first, n * t)
                                .view({n, t, kv, per_kv, d})
                                .permute({0, 2, 3, 1, 4});  // (n, kv, per_kv, t, d)
    at::Tensor scores = at::matmul(rows, k) * (1.0 / std::sqrt(static_cast<double>(d)));
    scores = scores.masked_fill(config.Window(layer) > 0 ? part.far : part.hidden,
                                -std::numeric_limits<double>::infinity());
    const at::Tensor mixed = at::matmul(at::softmax(scores, -1), v);
    out.narrow(0, part.first, n * t)
        .copy_(mixed.permute({0, 3, 1, 2, 4}).reshape({n * t, config.heads, d}));
  }
  return out.view({q.size(0), config.heads * d});
}

}  // namespace

at::Tensor DecodeWithOperators(const ModelConfig& config, const ModelWeights& weights,
                               KvCache* cache, absl::Span<const StepSequence> sequences) {
  const at::Device device = weights.embed.device();
  const Inputs in = MakeInputs(config, sequences, device);
  const int64_t rows = in.ids.size(0), d = config.head_dim;
  const double eps = config.rms_norm_eps;
  at::Tensor x = weights.embed.index_select(0, in.ids);
  for (int64_t l = 0; l < config.layers; ++l) {
    const LayerWeights& w = weights.layers[l];
    const at::Tensor qkv = Linear(Norm(x, w.input_norm, eps), w.qkv_weight, w.qkv_bias)
                               .view({rows, config.heads + 2 * config.kv_heads, d});
    at::Tensor q = qkv.narrow(1, 0, config.heads);
    at::Tensor k = qkv.narrow(1, config.heads, config.kv_heads);
    const at::Tensor v = qkv.narrow(1, config.heads + config.kv_heads, config.kv_heads);
    if (config.qk_norm) {
      q = Norm(q, w.q_norm, eps);
      k = Norm(k, w.k_norm, eps);
    }
    q = Rotate(q, in);
    cache->keys(l).index_put_({in.block, Slice(), Slice(), in.slot}, Rotate(k, in));
    cache->values(l).index_put_({in.block, Slice(), in.slot}, v);
    const at::Tensor attended = Attend(config, in, q, cache, l);
    x = x + Linear(attended, w.o_weight, w.o_bias);
    const at::Tensor normed = Norm(x, w.post_norm, eps);
    if (config.HasExperts(l)) {
      x = x + MixtureOfExperts(config, w, normed).out;
      continue;
    }
    const std::vector<at::Tensor> gate_up =
        Linear(normed, w.gate_up_weight, at::Tensor()).chunk(2, -1);
    x = x + Linear(at::silu(gate_up[0]) * gate_up[1], w.down_weight, at::Tensor());
  }
  x = Norm(x.index_select(0, in.logit_rows), weights.final_norm, eps);
  return Linear(x, weights.lm_head, at::Tensor());
}

}  // namespace millrace
