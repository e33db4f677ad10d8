// The metrics of the lease loop; all names in one place. Thread-safe.
#ifndef MILLRACE_ROLLOUT_SERVER_LOOP_METRICS_H_
#define MILLRACE_ROLLOUT_SERVER_LOOP_METRICS_H_

#include <string>

#include "common/metrics.h"
#include "common/trajectory.h"

namespace millrace {

struct LoopMetrics {
  explicit LoopMetrics(Metrics* metrics);
  Counter& Trajectories(TrajectoryStatus status);
  Counter& Pushes(const std::string& result);  // stored, duplicate, refused, unconfirmed
  Counter& Groups(const std::string& result);  // pushed, failed, lost, released, overdue

  Metrics* const metrics;
  Counter& leased;
  Gauge& held_groups;
  Gauge& verify_queue;
  Counter& truncated;
  Counter& sampled_tokens;
  Histogram& response_tokens;
  Histogram& verify_seconds;
  Histogram& generate_seconds;
  TimeSplit time;
};

}  // namespace millrace

#endif  // MILLRACE_ROLLOUT_SERVER_LOOP_METRICS_H_
