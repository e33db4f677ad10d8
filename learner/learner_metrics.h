// The learner's Prometheus metrics (docs/metrics.md). Thread-safe.
#ifndef MILLRACE_LEARNER_LEARNER_METRICS_H_
#define MILLRACE_LEARNER_LEARNER_METRICS_H_

#include <cstdint>
#include <map>
#include <string>

#include "common/metrics.h"
#include "learner/evaluation_client.h"
#include "learner/train_step.h"

namespace millrace {

class LearnerMetrics {
 public:
  explicit LearnerMetrics(Metrics* metrics);

  void OnStep(int64_t step, const StepReport& report, double tokens_per_second);
  void OnDropped(const std::map<std::string, uint64_t>& dropped);
  void OnEval(const EvalOutcome& outcome);
  void OnPublish(int64_t version, double seconds, int64_t bytes);
  void OnCheckpoint(double seconds);
  void OnPhaseSeconds(const std::string& phase, double seconds);
  void OnWarmUp(int64_t step, double loss, double accuracy);

 private:
  Metrics* const metrics_;
  Gauge &step_, &version_, &reward_, &reward_std_, &entropy_, &kl_, &loss_, &grad_norm_, &lr_,
      &ratio_max_, &diff_mean_, &diff_max_, &tokens_per_second_, &truncated_, &clip_low_,
      &clip_high_, &warm_up_step_, &warm_up_loss_;
  Counter &trained_tokens_, &trained_trajectories_, &trained_groups_, &skipped_, &no_verdict_,
      &published_bytes_, &checkpoints_;
  Histogram &staleness_, &response_tokens_, &publish_seconds_, &checkpoint_seconds_;
};

}  // namespace millrace

#endif  // MILLRACE_LEARNER_LEARNER_METRICS_H_
