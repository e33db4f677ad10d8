#include "rollout_server/weight_swap.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "model/parameter_view.h"

namespace millrace {
namespace {

std::vector<ParameterBytes> ToParameters(absl::Span<const NamedSpan> tensors) {
  std::vector<ParameterBytes> out;
  out.reserve(tensors.size());
  for (const NamedSpan& t : tensors) out.push_back({t.name, t.dtype, t.shape, t.bytes});
  return out;
}

}  // namespace

WeightSwap::WeightSwap(const ModelConfig& config, Swap swap, Metrics* metrics, Clock* clock)
    : config_(config),
      swap_(std::move(swap)),
      clock_(clock),
      version_gauge_(metrics->AddGauge("millrace_rollout_active_version",
                                       "Weight version that new tokens carry; -1 before the "
                                       "first.")),
      activated_(metrics->AddCounter("millrace_rollout_weight_swaps_total",
                                     "Weight versions offered to the engine, by outcome.",
                                     {{"result", "activated"}})),
      failed_(metrics->AddCounter("millrace_rollout_weight_swaps_total",
                                  "Weight versions offered to the engine, by outcome.",
                                  {{"result", "failed"}})),
      seconds_(metrics->AddHistogram("millrace_rollout_weight_swap_seconds",
                                     "From the request to swap until the version is active.",
                                     Metrics::SecondsBuckets())),
      since_(clock->Now()) {
  version_gauge_.Set(-1);
}

absl::Status WeightSwap::Prepare(int64_t version, absl::Span<const NamedSpan> tensors) {
  absl::Status status = CheckParameters(config_, ToParameters(tensors), /*with_bytes=*/false);
  if (status.ok()) return status;
  failed_.Increment();
  status = absl::Status(status.code(),
                        absl::StrCat("version ", version, " does not fit: ", status.message()));
  absl::MutexLock lock(&mu_);
  last_error_ = std::string(status.message());
  return status;
}

absl::Status WeightSwap::Activate(int64_t version, absl::Span<const NamedSpan> tensors,
                                  absl::Time deadline) {
  const absl::Time start = clock_->Now();
  const absl::Status status = swap_(version, tensors, deadline);
  absl::MutexLock lock(&mu_);
  if (!status.ok()) {
    failed_.Increment();
    last_error_ = absl::StrCat("version ", version, ": ", status.ToString());
    return status;
  }
  since_ = clock_->Now();
  seconds_.Observe(absl::ToDoubleSeconds(since_ - start));
  activated_.Increment();
  active_ = version;
  version_gauge_.Set(static_cast<double>(version));
  last_error_.clear();
  return status;
}

int64_t WeightSwap::active_version() const {
  absl::MutexLock lock(&mu_);
  return active_;
}

absl::Status WeightSwap::WaitForVersion(int64_t version, absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  const auto there = [this, version]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return active_ >= version; };
  if (clock_->AwaitWithDeadline(&mu_, absl::Condition(&there), clock_->Now() + timeout)) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "waited ", absl::FormatDuration(timeout), " for weight version ", version,
      "; the active one is ", active_, " since ", absl::FormatDuration(clock_->Now() - since_),
      last_error_.empty() ? "" : absl::StrCat("; last error: ", last_error_)));
}

}  // namespace millrace
