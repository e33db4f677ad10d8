// The engine's metrics; all names in one place. Thread-safe.
#ifndef MILLRACE_ROLLOUT_SERVER_ENGINE_METRICS_H_
#define MILLRACE_ROLLOUT_SERVER_ENGINE_METRICS_H_

#include <memory>
#include <string>

#include "common/metrics.h"
#include "rollout_server/engine.h"

namespace millrace {

class EngineMetrics {
 public:
  explicit EngineMetrics(Metrics* metrics);  // null: counted, but served nowhere
  // Books the time from now on as `state`: busy_decode, busy_prefill, swap, idle.
  void Enter(const char* state);
  Counter& Samples(FinishReason reason);

 private:
  std::unique_ptr<Metrics> own_;
  Metrics* const metrics_;
  std::string state_;

 public:
  Counter& generated_tokens;
  Counter& prefill_tokens;
  Counter& recomputed_tokens;
  Counter& decode_steps;
  Counter& weight_swaps;
  Gauge& running;
  Gauge& waiting;
  Gauge& kv_blocks_used;
  Gauge& kv_blocks;
  Gauge& version;
  Histogram& batch;
  Histogram& swap_seconds;
  TimeSplit time;
};

}  // namespace millrace

#endif  // MILLRACE_ROLLOUT_SERVER_ENGINE_METRICS_H_
