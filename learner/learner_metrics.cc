#include "learner/learner_metrics.h"

namespace millrace {

LearnerMetrics::LearnerMetrics(Metrics* m)
    : metrics_(m),
      step_(m->AddGauge("millrace_learner_step", "Learner steps done.")),
      version_(m->AddGauge("millrace_learner_version", "Newest published weight version.")),
      reward_(m->AddGauge("millrace_learner_reward_mean", "Mean reward of the last batch.")),
      reward_std_(m->AddGauge("millrace_learner_reward_std",
                              "Standard deviation of the rewards of the last batch.")),
      entropy_(m->AddGauge("millrace_learner_entropy_nats",
                           "Mean entropy of the policy over the last batch's tokens, before its "
                           "first update.")),
      kl_(m->AddGauge(
          "millrace_learner_kl_nats",
          "Mean KL (k3) to the reference over the last batch's tokens; 0 without one.")),
      loss_(m->AddGauge("millrace_learner_loss", "Loss of the last update.")),
      grad_norm_(m->AddGauge("millrace_learner_grad_norm",
                             "Gradient norm of the last update before clipping.")),
      lr_(m->AddGauge("millrace_learner_lr", "Learning rate of the last update.")),
      ratio_max_(m->AddGauge("millrace_learner_ratio_max",
                             "Largest policy-to-sampler ratio of the last update.")),
      diff_mean_(m->AddGauge("millrace_learner_logprob_diff_mean_nats",
                             "Mean |sampler - learner| logprob of the last batch.")),
      diff_max_(m->AddGauge("millrace_learner_logprob_diff_max_nats",
                            "Largest |sampler - learner| logprob of the last batch.")),
      tokens_per_second_(m->AddGauge("millrace_learner_tokens_per_second",
                                     "Trained tokens per second of the last step.")),
      truncated_(m->AddGauge("millrace_learner_truncated_ratio",
                             "Fraction of truncated trajectories in the last batch.")),
      clip_low_(m->AddGauge("millrace_learner_clip_ratio",
                            "Fraction of tokens whose ratio was clipped in the last update.",
                            {{"side", "low"}})),
      clip_high_(m->AddGauge("millrace_learner_clip_ratio",
                             "Fraction of tokens whose ratio was clipped in the last update.",
                             {{"side", "high"}})),
      warm_up_step_(m->AddGauge("millrace_learner_sft_step", "Steps of the warm-up done.")),
      warm_up_loss_(m->AddGauge("millrace_learner_sft_loss", "Loss of the last warm-up step.")),
      trained_tokens_(m->AddCounter("millrace_learner_trained_tokens_total",
                                    "Sampled tokens of the batches trained on.")),
      trained_trajectories_(
          m->AddCounter("millrace_learner_trained_trajectories_total", "Trajectories trained on.")),
      trained_groups_(m->AddCounter("millrace_learner_trained_groups_total", "Groups trained on.")),
      skipped_(m->AddCounter("millrace_learner_skipped_updates_total",
                             "Updates skipped because loss or gradient was not finite.")),
      no_verdict_(m->AddCounter("millrace_learner_no_verdict_trajectories_total",
                                "FAILED or ABORTED members left out of the gradient.")),
      published_bytes_(m->AddCounter("millrace_learner_published_bytes_total",
                                     "Weight bytes handed to weight sync.")),
      checkpoints_(m->AddCounter("millrace_learner_checkpoints_total", "Checkpoints written.")),
      staleness_(m->AddHistogram("millrace_learner_staleness_versions",
                                 "Learner version minus oldest version of a trained trajectory.",
                                 Metrics::StalenessBuckets())),
      response_tokens_(m->AddHistogram("millrace_learner_response_tokens",
                                       "Sampled tokens of a trained trajectory.",
                                       {4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096})),
      publish_seconds_(m->AddHistogram("millrace_learner_publish_seconds",
                                       "Seconds to hand a version to weight sync.",
                                       Metrics::SecondsBuckets())),
      checkpoint_seconds_(m->AddHistogram("millrace_learner_checkpoint_seconds",
                                          "Seconds to write a checkpoint in the background.",
                                          Metrics::SecondsBuckets())) {}

void LearnerMetrics::OnStep(int64_t step, const StepReport& report, double tokens_per_second) {
  // As in metrics.jsonl: what the batch says of the policy that it met is of the first update, what
  // became of it of the last.
  const UpdateReport& first = report.updates.front();
  const UpdateReport& update = report.updates.back();
  step_.Set(static_cast<double>(step));
  reward_.Set(report.reward_mean);
  reward_std_.Set(report.reward_std);
  entropy_.Set(first.entropy);
  kl_.Set(update.kl);
  loss_.Set(update.loss);
  grad_norm_.Set(update.grad_norm);
  lr_.Set(update.lr);
  ratio_max_.Set(update.ratio_max);
  clip_low_.Set(update.clip_low);
  clip_high_.Set(update.clip_high);
  diff_mean_.Set(first.logprob_diff_mean);
  diff_max_.Set(first.logprob_diff_max);
  tokens_per_second_.Set(tokens_per_second);
  truncated_.Set(report.truncated_fraction);
  trained_tokens_.Increment(static_cast<double>(report.trained_tokens));
  trained_trajectories_.Increment(static_cast<double>(report.trajectories));
  trained_groups_.Increment(static_cast<double>(report.groups));
  no_verdict_.Increment(static_cast<double>(report.no_verdict));
  for (const UpdateReport& u : report.updates) skipped_.Increment(u.skipped ? 1 : 0);
  for (int64_t versions : report.staleness) staleness_.Observe(static_cast<double>(versions));
  for (int64_t tokens : report.response_tokens) {
    response_tokens_.Observe(static_cast<double>(tokens));
  }
}

void LearnerMetrics::OnDropped(const std::map<std::string, uint64_t>& dropped) {
  for (const auto& [reason, count] : dropped) {
    metrics_
        ->AddCounter("millrace_learner_dropped_groups_total",
                     "Groups that the buffer dropped, as told with each batch.",
                     {{"reason", reason}})
        .Increment(static_cast<double>(count));
  }
}

void LearnerMetrics::OnEval(const EvalOutcome& outcome) {
  const Labels labels = {{"kind", outcome.request.kind}, {"mode", outcome.request.mode}};
  auto set = [&](const char* name, const char* help, double value) {
    metrics_->AddGauge(name, help, labels).Set(value);
  };
  set("millrace_learner_heldout_accuracy_ratio", "Accuracy of the last evaluation.",
      outcome.accuracy);
  set("millrace_learner_heldout_low_ratio", "Lower end of its 95 % interval.", outcome.low);
  set("millrace_learner_heldout_high_ratio", "Upper end of its 95 % interval.", outcome.high);
  set("millrace_learner_heldout_seconds", "Seconds the last evaluation took.", outcome.seconds);
}

void LearnerMetrics::OnPublish(int64_t version, double seconds, int64_t bytes) {
  version_.Set(static_cast<double>(version));
  publish_seconds_.Observe(seconds);
  published_bytes_.Increment(static_cast<double>(bytes));
}

void LearnerMetrics::OnCheckpoint(double seconds) {
  checkpoint_seconds_.Observe(seconds);
  checkpoints_.Increment();
}

void LearnerMetrics::OnPhaseSeconds(const std::string& phase, double seconds) {
  metrics_
      ->AddHistogram("millrace_learner_phase_seconds", "Seconds of each part of a step.",
                     Metrics::SecondsBuckets(), {{"phase", phase}})
      .Observe(seconds);
}

void LearnerMetrics::OnWarmUp(int64_t step, double loss, double accuracy) {
  warm_up_step_.Set(static_cast<double>(step));
  if (loss >= 0) warm_up_loss_.Set(loss);
  if (accuracy >= 0) {
    metrics_
        ->AddGauge("millrace_learner_heldout_accuracy_ratio", "Accuracy of the last evaluation.",
                   {{"kind", "sft"}, {"mode", "greedy"}})
        .Set(accuracy);
  }
}

}  // namespace millrace
