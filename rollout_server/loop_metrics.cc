#include "rollout_server/loop_metrics.h"

namespace millrace {
namespace {

std::vector<double> TokenBuckets() { return {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096}; }

}  // namespace

LoopMetrics::LoopMetrics(Metrics* m)
    : metrics(m),
      leased(m->AddCounter("millrace_rollout_groups_leased_total", "Groups leased.")),
      held_groups(m->AddGauge("millrace_rollout_held_groups", "Groups leased and not done.")),
      verify_queue(m->AddGauge("millrace_rollout_verify_queue_samples",
                               "Samples that wait for their verdict.")),
      truncated(m->AddCounter("millrace_rollout_truncated_total",
                              "Trajectories that ended at a length limit.")),
      sampled_tokens(m->AddCounter("millrace_rollout_trajectory_tokens_total",
                                   "Sampled tokens of the trajectories that were pushed.")),
      response_tokens(m->AddHistogram("millrace_rollout_response_tokens",
                                      "Sampled tokens of one trajectory.", TokenBuckets())),
      verify_seconds(m->AddHistogram("millrace_rollout_verify_seconds", "Time of one verdict.",
                                     Metrics::SecondsBuckets())),
      generate_seconds(m->AddHistogram("millrace_rollout_generate_seconds",
                                       "From admission of a sample to its last token.",
                                       Metrics::SecondsBuckets())),
      time(m, "rollout") {
  // Series exist from the start, so that a rate over them sees the first event.
  Trajectories(TrajectoryStatus::kCompleted);
  Trajectories(TrajectoryStatus::kTruncated);
  Trajectories(TrajectoryStatus::kAborted);
  Trajectories(TrajectoryStatus::kFailed);
  for (const char* result : {"stored", "duplicate", "refused", "unconfirmed"}) Pushes(result);
  for (const char* result : {"pushed", "failed", "lost", "released", "overdue"}) Groups(result);
}

Counter& LoopMetrics::Trajectories(TrajectoryStatus status) {
  return metrics->AddCounter("millrace_rollout_trajectories_total",
                             "Trajectories handed to the buffer, by status.",
                             {{"status", ToString(status)}});
}

Counter& LoopMetrics::Pushes(const std::string& result) {
  return metrics->AddCounter("millrace_rollout_pushes_total", "Pushes, by the buffer's answer.",
                             {{"result", result}});
}

Counter& LoopMetrics::Groups(const std::string& result) {
  return metrics->AddCounter("millrace_rollout_groups_ended_total",
                             "Groups that left this server, by how.", {{"result", result}});
}

}  // namespace millrace
