// The clipped policy-gradient loss of the GRPO family and its derivative, by hand, over plain
// arrays. No lock, clock or tensor.
//
// Per token, with r = exp(logprob - old) (old = the sampler's logprob):
//   pg   = -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)            (PPO: Schulman et al. 2017)
//   kl   = exp(ref - logprob) - (ref - logprob) - 1                     (k3: Schulman 2020)
//          times r when the KL is bias-corrected (DeepSeek-V3.2 report)
//   loss = sum over tokens of weight (pg + kl_beta kl)
// The weight holds the denominator, fixed before anything is filtered, masked, packed or split:
//   grpo     1 / (B T)   B trajectories of the batch, T sampled tokens of this one (Shao et al.
//                        2024)
//   dapo     1 / N       N sampled tokens of the batch (Yu et al. 2025)
//   bnpo     1 / N       the same here, since a batch is one step whatever the micro-batches
//   dr_grpo  1 / (B M)   M = the largest completion length, a constant (Liu et al. 2025)
#ifndef MILLRACE_LEARNER_POLICY_LOSS_H_
#define MILLRACE_LEARNER_POLICY_LOSS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace millrace {

enum class LossType { kGrpo, kDapo, kDrGrpo, kBnpo };

// "grpo", "dapo", "dr_grpo", "bnpo" as in learner.loss.
absl::StatusOr<LossType> ParseLossType(const std::string& name);

// Of one step, fixed before packing. A trajectory without a verdict was never part of the batch.
struct LossDenominators {
  double trajectories = 0;  // B
  double tokens = 0;        // N, sampled tokens
  double max_tokens = 0;    // M, learner's constant for dr_grpo (rollout.max_new_tokens)
};

// Weight of every token of a trajectory with `tokens` sampled tokens.
double TokenWeight(LossType type, const LossDenominators& denominators, int64_t tokens);

struct PolicyLossOptions {
  double clip_low = 0.2;
  double clip_high = 0.2;
  double kl_beta = 0;
  bool kl_bias_correction = false;
};

// All of length N; ref_logprobs may be empty when kl_beta is 0.
struct PolicyLossInput {
  absl::Span<const float> logprobs;      // of the policy being trained
  absl::Span<const float> old_logprobs;  // of the sampler
  absl::Span<const float> ref_logprobs;
  absl::Span<const double> advantages;
  absl::Span<const double> weights;
};

// Sums over the tokens seen so far; divide by `tokens` for means.
struct PolicyLossSums {
  double loss = 0;       // weighted: the loss itself, not to be divided
  int64_t tokens = 0;    // with weight > 0
  double kl = 0;         // to the reference
  double clip_low = 0;   // r < 1 - clip_low and A < 0
  double clip_high = 0;  // r > 1 + clip_high and A > 0
  double ratio = 0;
  double ratio_max = 0;
  double sampler_kl = 0;  // k3 estimate of KL(sampler, policy)
};

// Adds to `sums` and writes d loss / d logprob to `gradient` (N). INVALID_ARGUMENT names spans of
// different lengths. Non-finite inputs give a non-finite loss.
absl::Status PolicyLoss(const PolicyLossOptions& options, const PolicyLossInput& input,
                        absl::Span<float> gradient, PolicyLossSums* sums);

}  // namespace millrace

#endif  // MILLRACE_LEARNER_POLICY_LOSS_H_
