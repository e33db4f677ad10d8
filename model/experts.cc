#include "model/experts.h"

#include <ATen/ATen.h>

#include <cstdint>
#include <tuple>

namespace millrace {
namespace {

// The (token, choice) pairs of a batch in order of their experts.
struct Grouping {
  at::Tensor tokens;            // (M * k) row of x
  at::Tensor pairs;             // (M * k) token * k + choice
  std::vector<int64_t> counts;  // (experts)
};

Grouping GroupByExpert(const at::Tensor& chosen, int64_t experts) {
  const at::Tensor host = chosen.to(at::kCPU).contiguous();
  const int64_t* expert = host.const_data_ptr<int64_t>();
  const int64_t choices = host.size(1), pairs = host.numel();
  Grouping g;
  g.counts.assign(experts, 0);
  for (int64_t p = 0; p < pairs; ++p) ++g.counts[expert[p]];
  std::vector<int64_t> next(experts, 0);
  for (int64_t e = 1; e < experts; ++e) next[e] = next[e - 1] + g.counts[e - 1];
  at::Tensor index = at::empty({2, pairs}, at::kLong);
  int64_t* tokens = index.data_ptr<int64_t>();
  for (int64_t p = 0; p < pairs; ++p) {
    const int64_t at = next[expert[p]]++;
    tokens[at] = p / choices;
    tokens[pairs + at] = p;
  }
  index = index.to(chosen.device(), /*non_blocking=*/true);
  g.tokens = index.select(0, 0);
  g.pairs = index.select(0, 1);
  return g;
}

}  // namespace

ExpertsOutput MixtureOfExperts(const ModelConfig& config, const LayerWeights& weights,
                               const at::Tensor& x) {
  ExpertsOutput result;
  result.router_logits = at::mm(x, weights.router.t());
  at::Tensor share, chosen;
  std::tie(share, chosen) =
      at::topk(at::softmax(result.router_logits, -1), config.experts_per_token, -1);
  if (config.norm_topk_prob) share = share / share.sum(-1, /*keepdim=*/true);
  const Grouping g = GroupByExpert(chosen, config.experts);
  const at::Tensor rows = x.index_select(0, g.tokens);
  std::vector<at::Tensor> outputs;
  int64_t begin = 0;
  for (int64_t e = 0; e < config.experts; ++e) {
    if (g.counts[e] == 0) continue;
    const ExpertWeights& expert = weights.experts[e];
    const std::vector<at::Tensor> gate_up =
        at::mm(rows.narrow(0, begin, g.counts[e]), expert.gate_up_weight.t()).chunk(2, -1);
    outputs.push_back(at::mm(at::silu(gate_up[0]) * gate_up[1], expert.down_weight.t()));
    begin += g.counts[e];
  }
  const at::Tensor scale = share.reshape({-1, 1}).index_select(0, g.pairs);
  result.out = at::zeros_like(x).index_add(0, g.tokens, at::cat(outputs, 0) * scale);
  return result;
}

at::Tensor RouterBalanceLoss(const ModelConfig& config,
                             const std::vector<at::Tensor>& router_logits) {
  const at::Tensor probabilities = at::softmax(at::cat(router_logits, 0), -1);
  const at::Tensor chosen = std::get<1>(at::topk(probabilities, config.experts_per_token, -1));
  const at::Tensor share =
      at::zeros_like(probabilities).scatter(-1, chosen, 1.0).mean(0, /*keepdim=*/false);
  return (share * probabilities.mean(0, /*keepdim=*/false)).sum() *
         static_cast<double>(config.experts);
}

}  // namespace millrace
