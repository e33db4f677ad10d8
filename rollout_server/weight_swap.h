// Takes verified weight versions into the engine, and says which one is active. Thread-safe.
#ifndef MILLRACE_ROLLOUT_SERVER_WEIGHT_SWAP_H_
#define MILLRACE_ROLLOUT_SERVER_WEIGHT_SWAP_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "model/model_config.h"
#include "rollout_server/engine.h"
#include "rollout_server/ports.h"
#include "weight_sync/subscriber.h"

namespace millrace {

class WeightSwap : public WeightReceiver, public VersionGate {
 public:
  // Makes the bytes of `tensors` the weights under `version`, whole or not at all, before
  // `deadline`.
  using Swap = std::function<absl::Status(int64_t version, absl::Span<const NamedSpan> tensors,
                                          absl::Time deadline)>;
  // `metrics` and `clock` must outlive it.
  WeightSwap(const ModelConfig& config, Swap swap, Metrics* metrics, Clock* clock = Clock::Real());

  // INVALID_ARGUMENT names the version and the first tensor that is missing, surplus, given twice,
  // or of another shape or dtype than this model's.
  absl::Status Prepare(int64_t version, absl::Span<const NamedSpan> tensors) override;
  absl::Status Activate(int64_t version, absl::Span<const NamedSpan> tensors,
                        absl::Time deadline) override;

  int64_t active_version() const override;
  absl::Status WaitForVersion(int64_t version, absl::Duration timeout) override;

 private:
  const ModelConfig config_;
  const Swap swap_;
  Clock* const clock_;
  Gauge& version_gauge_;
  Counter& activated_;
  Counter& failed_;
  Histogram& seconds_;

  mutable absl::Mutex mu_;
  int64_t active_ ABSL_GUARDED_BY(mu_) = -1;
  absl::Time since_ ABSL_GUARDED_BY(mu_);
  std::string last_error_ ABSL_GUARDED_BY(mu_);  // of Prepare or Activate; empty after a success
};

// A Swap that gives the engine its weights between two decode steps. `engine` must outlive it.
WeightSwap::Swap MakeEngineSwap(Engine* engine);

}  // namespace millrace

#endif  // MILLRACE_ROLLOUT_SERVER_WEIGHT_SWAP_H_
