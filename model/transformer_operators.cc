#include "model/transformer_operators.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "model/experts.h"

namespace millrace {
namespace {

// Segments of like lengths, padded to one shape for one attention product. S segments of the
// bucket, Lq query and Lk key rows at most.
struct Bucket {
  int64_t segments, queries, keys;
  at::Tensor query_rows;  // (S * Lq) packed rows; padding reads row 0
  at::Tensor key_rows;    // (S * Lk)
  at::Tensor mask;        // (S, 1, 1, Lq, Lk), 0 or -inf
  at::Tensor window;      // the same for layers with a window; undefined when there are none
};

struct AttentionPlan {
  std::vector<Bucket> buckets;
  at::Tensor output_rows;  // (T) row of the concatenated padded outputs that holds packed token t
};

// Packed rows that segment s attends to, its own last.
std::vector<int64_t> KeyRows(const PackedBatch& batch, int64_t s) {
  std::vector<int64_t> chain;
  for (; s >= 0; s = batch.segments[s].prefix) chain.push_back(s);
  std::vector<int64_t> rows;
  for (auto it = chain.rbegin(); it != chain.rend(); ++it) {
    for (int64_t t = batch.segments[*it].begin; t < batch.segments[*it].end; ++t) rows.push_back(t);
  }
  return rows;
}

at::Tensor ToDevice(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(values, at::kLong).to(device, /*non_blocking=*/true);
}

Bucket MakeBucket(const PackedBatch& batch, const std::vector<std::vector<int64_t>>& keys,
                  absl::Span<const int64_t> members, int64_t window, at::Device device) {
  Bucket b{static_cast<int64_t>(members.size()), 0, 0, {}, {}, {}, {}};
  for (int64_t s : members) {
    b.queries = std::max(b.queries, batch.segments[s].end - batch.segments[s].begin);
    b.keys = std::max<int64_t>(b.keys, keys[s].size());
  }
  std::vector<int64_t> query_rows(b.segments * b.queries, 0), key_rows(b.segments * b.keys, 0);
  at::Tensor mask = at::full({b.segments, 1, 1, b.queries, b.keys},
                             -std::numeric_limits<float>::infinity(), at::kFloat);
  at::Tensor near = window > 0 ? mask.clone() : at::Tensor();
  float* m = mask.data_ptr<float>();
  for (int64_t i = 0; i < b.segments; ++i) {
    const int64_t s = members[i], n = batch.segments[s].end - batch.segments[s].begin;
    const int64_t before = static_cast<int64_t>(keys[s].size()) - n;
    std::iota(&query_rows[i * b.queries], &query_rows[i * b.queries] + n, batch.segments[s].begin);
    std::copy(keys[s].begin(), keys[s].end(), &key_rows[i * b.keys]);
    for (int64_t q = 0; q < b.queries; ++q) {
      // A padded query sees one key, so that its softmax is finite; nobody reads it.
      const int64_t seen = q < n ? before + q + 1 : 1;
      const int64_t row = (i * b.queries + q) * b.keys;
      std::fill_n(m + row, seen, 0.0f);
      if (window > 0) {
        const int64_t count = std::min(seen, window);
        std::fill_n(near.data_ptr<float>() + row + seen - count, count, 0.0f);
      }
    }
  }
  b.query_rows = ToDevice(query_rows, device);
  b.key_rows = ToDevice(key_rows, device);
  b.mask = mask.to(device, /*non_blocking=*/true);
  if (window > 0) b.window = near.to(device, /*non_blocking=*/true);
  return b;
}

AttentionPlan PlanAttention(const PackedBatch& batch, int64_t window, at::Device device) {
  const int64_t count = static_cast<int64_t>(batch.segments.size());
  std::vector<std::vector<int64_t>> keys(count);
  for (int64_t s = 0; s < count; ++s) keys[s] = KeyRows(batch, s);
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  const auto length = [&](int64_t s) { return batch.segments[s].end - batch.segments[s].begin; };
  // Powers of two of query, then key length: at most half of a bucket's rows are padding.
  const auto size_class = [&](int64_t s) {
    return std::make_pair(std::ilogb(length(s)), std::ilogb(keys[s].size()));
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return size_class(a) < size_class(b); });
  AttentionPlan plan;
  std::vector<int64_t> output_rows(batch.token_ids.size());
  int64_t row = 0;
  for (int64_t from = 0; from < count;) {
    int64_t to = from;
    while (to < count && size_class(order[to]) == size_class(order[from])) ++to;
    const absl::Span<const int64_t> members(&order[from], to - from);
    plan.buckets.push_back(MakeBucket(batch, keys, members, window, device));
    for (int64_t s : members) {
      std::iota(output_rows.begin() + batch.segments[s].begin,
                output_rows.begin() + batch.segments[s].end, row);
      row += plan.buckets.back().queries;
    }
    from = to;
  }
  plan.output_rows = ToDevice(output_rows, device);
  return plan;
}

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x * at::rsqrt(x.square().mean(-1, true) + eps) * weight;
}

struct Rotary {
  at::Tensor cos, sin;  // (T, 1, head_dim / 2)
};

Rotary MakeRotary(const ModelConfig& config, const PackedBatch& batch, at::Device device) {
  const int64_t half = config.head_dim / 2, tokens = batch.positions.size();
  at::Tensor table = at::empty({2, tokens, 1, half}, at::kFloat);
  float* cos = table.data_ptr<float>();
  float* sin = cos + tokens * half;
  const std::vector<double> frequencies = RopeFrequencies(config.rope, config.head_dim);
  const double factor = config.rope.attention_factor;
  for (int64_t i = 0; i < half; ++i) {
    for (int64_t t = 0; t < tokens; ++t) {
      const double angle = batch.positions[t] * frequencies[i];
      cos[t * half + i] = static_cast<float>(std::cos(angle) * factor);
      sin[t * half + i] = static_cast<float>(std::sin(angle) * factor);
    }
  }
  table = table.to(device, /*non_blocking=*/true);
  return {table[0], table[1]};
}

// x (T, heads, head_dim).
at::Tensor Rotate(const at::Tensor& x, const Rotary& rotary) {
  const std::vector<at::Tensor> h = x.chunk(2, -1);
  return at::cat({h[0] * rotary.cos - h[1] * rotary.sin, h[1] * rotary.cos + h[0] * rotary.sin},
                 -1);
}

// q (T, heads, D), k and v (T, kv_heads, D) -> (T, heads * D).
at::Tensor Attend(const AttentionPlan& plan, bool window, const at::Tensor& q, const at::Tensor& k,
                  const at::Tensor& v) {
  const int64_t heads = q.size(1), kv = k.size(1), d = q.size(2), repeat = heads / kv;
  const double scale = 1.0 / std::sqrt(static_cast<double>(d));
  std::vector<at::Tensor> outputs;
  for (const Bucket& b : plan.buckets) {
    at::Tensor queries = q.index_select(0, b.query_rows)
                             .view({b.segments, b.queries, kv, repeat, d})
                             .permute({0, 2, 3, 1, 4})
                             .reshape({b.segments, kv, repeat * b.queries, d});
    const auto gather = [&](const at::Tensor& x) {
      return x.index_select(0, b.key_rows).view({b.segments, b.keys, kv, d}).transpose(1, 2);
    };
    at::Tensor scores = (at::matmul(queries, gather(k).transpose(2, 3)) * scale)
                            .view({b.segments, kv, repeat, b.queries, b.keys});
    at::Tensor p =
        at::softmax(scores + (window ? b.window : b.mask), -1).view({b.segments, kv, -1, b.keys});
    outputs.push_back(at::matmul(p, gather(v))
                          .view({b.segments, kv, repeat, b.queries, d})
                          .permute({0, 3, 1, 2, 4})
                          .reshape({b.segments * b.queries, heads * d}));
  }
  return at::cat(outputs, 0).index_select(0, plan.output_rows);
}

struct Sequences {
  AttentionPlan plan;
  Rotary rotary;
};

at::Tensor AttentionBlock(const ModelConfig& c, int64_t layer, const LayerWeights& w,
                          const at::Tensor& x, const Sequences& in) {
  const Rotary& rotary = in.rotary;
  const int64_t tokens = x.size(0), q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  at::Tensor qkv = at::linear(x, w.qkv_weight, w.qkv_bias);
  at::Tensor queries = qkv.narrow(1, 0, q).view({tokens, c.heads, c.head_dim});
  at::Tensor keys = qkv.narrow(1, q, kv).view({tokens, c.kv_heads, c.head_dim});
  at::Tensor values = qkv.narrow(1, q + kv, kv).view({tokens, c.kv_heads, c.head_dim});
  if (c.qk_norm) {
    queries = RmsNorm(queries, w.q_norm, c.rms_norm_eps);
    keys = RmsNorm(keys, w.k_norm, c.rms_norm_eps);
  }
  at::Tensor out =
      Attend(in.plan, c.Window(layer) > 0, Rotate(queries, rotary), Rotate(keys, rotary), values);
  return at::linear(out, w.o_weight, w.o_bias);
}

}  // namespace

at::Tensor ForwardWithOperators(const ModelConfig& c, const ModelWeights& weights,
                                const PackedBatch& batch, std::vector<at::Tensor>* router_logits) {
  const at::Device device = weights.embed.device();
  const Sequences in = {PlanAttention(batch, c.sliding_window, device),
                        MakeRotary(c, batch, device)};
  at::Tensor ids = at::tensor(batch.token_ids, at::kInt).to(device, /*non_blocking=*/true);
  at::Tensor x = weights.embed.index_select(0, ids);
  for (int64_t l = 0; l < c.layers; ++l) {
    const LayerWeights& w = weights.layers[l];
    x = x + AttentionBlock(c, l, w, RmsNorm(x, w.input_norm, c.rms_norm_eps), in);
    const at::Tensor normed = RmsNorm(x, w.post_norm, c.rms_norm_eps);
    if (c.HasExperts(l)) {
      ExpertsOutput experts = MixtureOfExperts(c, w, normed);
      if (router_logits != nullptr) router_logits->push_back(std::move(experts.router_logits));
      x = x + experts.out;
      continue;
    }
    const std::vector<at::Tensor> gate_up = at::linear(normed, w.gate_up_weight).chunk(2, -1);
    x = x + at::linear(at::silu(gate_up[0]) * gate_up[1], w.down_weight);
  }
  return RmsNorm(x, weights.final_norm, c.rms_norm_eps);
}

}  // namespace millrace
