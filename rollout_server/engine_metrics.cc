#include "rollout_server/engine_metrics.h"

namespace millrace {

EngineMetrics::EngineMetrics(Metrics* metrics)
    : own_(metrics == nullptr ? std::make_unique<Metrics>() : nullptr),
      metrics_(metrics == nullptr ? own_.get() : metrics),
      generated_tokens(
          metrics_->AddCounter("millrace_engine_generated_tokens_total", "Tokens sampled.")),
      prefill_tokens(metrics_->AddCounter(
          "millrace_engine_prefill_tokens_total",
          "Prompt tokens read, those of a shared prompt once; includes recomputed ones.")),
      recomputed_tokens(metrics_->AddCounter(
          "millrace_engine_recomputed_tokens_total",
          "Tokens whose K/V was dropped by a weight change and had to be read again.")),
      decode_steps(
          metrics_->AddCounter("millrace_engine_decode_steps_total", "Steps of the decode loop.")),
      weight_swaps(
          metrics_->AddCounter("millrace_engine_weight_swaps_total", "Weight versions activated.")),
      running(metrics_->AddGauge("millrace_engine_running_samples", "Samples being decoded.")),
      waiting(metrics_->AddGauge("millrace_engine_waiting_samples",
                                 "Samples that wait for a slot or for KV blocks.")),
      kv_blocks_used(
          metrics_->AddGauge("millrace_engine_kv_used_blocks", "Blocks of the KV cache in use.")),
      kv_blocks(metrics_->AddGauge("millrace_engine_kv_total_blocks", "Blocks of the KV cache.")),
      version(metrics_->AddGauge("millrace_engine_weight_version",
                                 "Version that new tokens are sampled with; -1 before the first.")),
      batch(metrics_->AddHistogram("millrace_engine_batch_samples",
                                   "Samples that took part in a decode step.",
                                   {1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256})),
      swap_seconds(metrics_->AddHistogram("millrace_engine_swap_seconds",
                                          "Time the decode loop stood still for a weight change.",
                                          Metrics::SecondsBuckets())),
      time(metrics_, "engine") {}

void EngineMetrics::Enter(const char* state) {
  if (state_ == state) return;
  state_ = state;
  time.Enter(state_);
}

Counter& EngineMetrics::Samples(FinishReason reason) {
  const char* name = reason == FinishReason::kStop     ? "stop"
                     : reason == FinishReason::kLength ? "length"
                                                       : "cancelled";
  return metrics_->AddCounter("millrace_engine_samples_total", "Samples ended, by reason.",
                              {{"reason", name}});
}

}  // namespace millrace
