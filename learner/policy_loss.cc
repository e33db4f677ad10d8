#include "learner/policy_loss.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace millrace {

absl::StatusOr<LossType> ParseLossType(const std::string& name) {
  if (name == "grpo") return LossType::kGrpo;
  if (name == "dapo") return LossType::kDapo;
  if (name == "dr_grpo") return LossType::kDrGrpo;
  if (name == "bnpo") return LossType::kBnpo;
  return absl::InvalidArgumentError(
      absl::StrCat("learner.loss is \"", name, "\"; valid: grpo, dapo, dr_grpo, bnpo"));
}

double TokenWeight(LossType type, const LossDenominators& d, int64_t tokens) {
  switch (type) {
    case LossType::kGrpo:
      return 1 / (std::max(d.trajectories, 1.0) * std::max<double>(tokens, 1));
    case LossType::kDapo:
    case LossType::kBnpo:
      return 1 / std::max(d.tokens, 1.0);
    case LossType::kDrGrpo:
      return 1 / (std::max(d.trajectories, 1.0) * std::max(d.max_tokens, 1.0));
  }
  return 0;
}

absl::Status PolicyLoss(const PolicyLossOptions& options, const PolicyLossInput& input,
                        absl::Span<float> gradient, PolicyLossSums* sums) {
  const size_t n = input.logprobs.size();
  const bool has_ref = !input.ref_logprobs.empty();
  if (input.old_logprobs.size() != n || input.advantages.size() != n || input.weights.size() != n ||
      gradient.size() != n || (has_ref && input.ref_logprobs.size() != n)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "policy loss: ", n, " logprobs, ", input.old_logprobs.size(), " old, ",
        input.ref_logprobs.size(), " reference, ", input.advantages.size(), " advantages, ",
        input.weights.size(), " weights, ", gradient.size(), " gradients do not agree"));
  }
  if (options.kl_beta != 0 && !has_ref && n > 0) {
    return absl::InvalidArgumentError("policy loss: kl_beta without reference logprobs");
  }
  for (size_t i = 0; i < n; ++i) {
    const double weight = input.weights[i];
    gradient[i] = 0;
    if (weight == 0) continue;
    const double logprob = input.logprobs[i];
    const double advantage = input.advantages[i];
    const double log_ratio = logprob - input.old_logprobs[i];
    const double ratio = std::exp(log_ratio);
    const double clipped = std::clamp(ratio, 1 - options.clip_low, 1 + options.clip_high);
    const double plain = ratio * advantage;
    double loss = -std::min(plain, clipped * advantage);
    // Where the clipped term is the smaller one it is a constant.
    double slope = plain <= clipped * advantage ? -plain : 0;
    if (std::isnan(ratio)) loss = ratio;
    if (has_ref) {
      const double back = input.ref_logprobs[i] - logprob;
      const double back_ratio = std::exp(back);
      double kl = back_ratio - back - 1;
      double kl_slope = 1 - back_ratio;
      if (options.kl_bias_correction) {
        kl_slope = ratio * (kl + kl_slope);
        kl *= ratio;
      }
      loss += options.kl_beta * kl;
      slope += options.kl_beta * kl_slope;
      sums->kl += kl;
    }
    gradient[i] = static_cast<float>(weight * slope);
    sums->loss += weight * loss;
    sums->tokens += 1;
    sums->clip_low += ratio < 1 - options.clip_low && advantage < 0;
    sums->clip_high += ratio > 1 + options.clip_high && advantage > 0;
    sums->ratio += ratio;
    sums->ratio_max = std::max(sums->ratio_max, ratio);
    sums->sampler_kl += ratio - log_ratio - 1;
  }
  return absl::OkStatus();
}

}  // namespace millrace
