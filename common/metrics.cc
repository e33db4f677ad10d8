#include "common/metrics.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "prometheus/text_serializer.h"

namespace millrace {

struct Metrics::Hooks {
  absl::Mutex mu;
  std::vector<std::function<void()>> hooks ABSL_GUARDED_BY(mu);
};

Metrics::Metrics(Labels constant_labels)
    : constant_labels_(std::move(constant_labels)),
      registry_(std::make_shared<prometheus::Registry>()),
      hooks_(std::make_shared<Hooks>()) {}

Counter& Metrics::AddCounter(const std::string& name, const std::string& help,
                             const Labels& labels) {
  return prometheus::BuildCounter()
      .Name(name)
      .Help(help)
      .Labels(constant_labels_)
      .Register(*registry_)
      .Add(labels);
}

Gauge& Metrics::AddGauge(const std::string& name, const std::string& help, const Labels& labels) {
  return prometheus::BuildGauge()
      .Name(name)
      .Help(help)
      .Labels(constant_labels_)
      .Register(*registry_)
      .Add(labels);
}

Histogram& Metrics::AddHistogram(const std::string& name, const std::string& help,
                                 const std::vector<double>& bounds, const Labels& labels) {
  return prometheus::BuildHistogram()
      .Name(name)
      .Help(help)
      .Labels(constant_labels_)
      .Register(*registry_)
      .Add(labels, bounds);
}

std::string Metrics::Serialize() const {
  std::vector<std::function<void()>> hooks;
  {
    absl::MutexLock lock(&hooks_->mu);
    hooks = hooks_->hooks;
  }
  for (const auto& hook : hooks) hook();
  return prometheus::TextSerializer().Serialize(registry_->Collect());
}

void Metrics::AddBeforeSerialize(std::function<void()> hook) {
  absl::MutexLock lock(&hooks_->mu);
  hooks_->hooks.push_back(std::move(hook));
}

std::vector<double> Metrics::SecondsBuckets() {
  return {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300};
}

std::vector<double> Metrics::StalenessBuckets() { return {0, 1, 2, 3, 4, 6, 8, 16}; }

struct TimeSplit::Impl {
  Metrics* metrics;
  std::string name;
  absl::Mutex mu;
  std::string state ABSL_GUARDED_BY(mu);
  absl::Time since ABSL_GUARDED_BY(mu);
  std::map<std::string, double> seconds ABSL_GUARDED_BY(mu);
  bool ended ABSL_GUARDED_BY(mu) = false;

  // Books the time since the last call on the present state.
  void Settle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (ended) return;
    const absl::Time now = Clock::Real()->Now();
    if (!state.empty()) {
      const double spent = absl::ToDoubleSeconds(now - since);
      seconds[state] += spent;
      metrics
          ->AddCounter(name, "Wall time by what the role's main loop was doing, seconds.",
                       {{"state", state}})
          .Increment(spent);
    }
    since = now;
  }
};

TimeSplit::TimeSplit(Metrics* metrics, const std::string& role) : impl_(std::make_shared<Impl>()) {
  impl_->metrics = metrics;
  impl_->name = "millrace_" + role + "_time_seconds_total";
  {
    absl::MutexLock lock(&impl_->mu);
    impl_->since = Clock::Real()->Now();
  }
  // A scrape in the middle of a long wait must show the wait.
  metrics->AddBeforeSerialize([impl = impl_] {
    absl::MutexLock lock(&impl->mu);
    impl->Settle();
  });
}

TimeSplit::~TimeSplit() {
  absl::MutexLock lock(&impl_->mu);
  impl_->Settle();
  impl_->ended = true;
}

void TimeSplit::Enter(const std::string& state) {
  absl::MutexLock lock(&impl_->mu);
  impl_->Settle();
  impl_->state = state;
}

std::map<std::string, double> TimeSplit::Seconds() const {
  absl::MutexLock lock(&impl_->mu);
  impl_->Settle();
  return impl_->seconds;
}

}  // namespace millrace
