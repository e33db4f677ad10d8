#include "learner/sft_trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/status_macros.h"
#include "learner/gradient_pass.h"
#include "learner/packer.h"

namespace millrace {

absl::StatusOr<std::unique_ptr<SftTrainer>> SftTrainer::Create(Transformer* model,
                                                               Options options) {
  auto trainer = std::unique_ptr<SftTrainer>(new SftTrainer(model, options));
  MR_ASSIGN_OR_RETURN(trainer->optimizer_,
                      AdamW::Create(model->flat_parameters(), model->flat_gradients(),
                                    DecayRanges(*model), options.optimizer));
  return trainer;
}

absl::StatusOr<SftStepReport> SftTrainer::Step(absl::Span<const SftExample> examples) {
  std::vector<PackInput> inputs;
  SftStepReport report;
  for (size_t i = 0; i < examples.size(); ++i) {
    inputs.push_back({examples[i].token_ids, examples[i].loss_mask, i});
    report.tokens += CountTargets(inputs.back());
  }
  MR_ASSIGN_OR_RETURN(std::vector<MicroBatch> micros,
                      PackTrajectories(inputs, options_.token_budget));
  const double weight = 1 / static_cast<double>(std::max<int64_t>(report.tokens, 1));
  auto loss = [&](const TargetLogprobs& result, absl::Span<float> gradient) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      const double logprob = result.logprobs[i];
      const double scale = options_.loss == SftLoss::kDft ? std::exp(logprob) : 1;
      report.loss -= weight * scale * logprob;
      report.entropy += weight * result.entropy[i];
      gradient[i] = static_cast<float>(-weight * scale);
    }
    return absl::OkStatus();
  };
  for (const MicroBatch& micro : micros) {
    MR_RETURN_IF_ERROR(AccumulateGradient(*model_, micro, {1, options_.logit_chunk}, loss));
  }
  if (!std::isfinite(report.loss)) {
    model_->ZeroGradients();
    report.grad_norm = std::numeric_limits<double>::quiet_NaN();
    report.skipped = true;
    return report;
  }
  MR_ASSIGN_OR_RETURN(AdamW::StepInfo info, optimizer_->Step(options_.lr));
  report.grad_norm = info.grad_norm;
  report.skipped = !info.applied;
  return report;
}

}  // namespace millrace
