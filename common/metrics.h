// Prometheus metrics of one process. A registry is made by main() and passed down; nothing is
// global. Thread-safe.
//
//   Metrics metrics({{"role", "buffer"}});
//   Counter& pushes = metrics.AddCounter("millrace_buffer_pushes_total", "Trajectories stored.",
//                                        {{"result", "stored"}});
//   pushes.Increment();
//
// Names: millrace_<folder>_<what>_<unit>, counters end in _total. docs/metrics.md lists them all.
// The same (name, labels) given twice returns the same object.
#ifndef MILLRACE_COMMON_METRICS_H_
#define MILLRACE_COMMON_METRICS_H_

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace millrace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using Labels = std::map<std::string, std::string>;

class Metrics {
 public:
  explicit Metrics(Labels constant_labels = {});
  Metrics(std::initializer_list<Labels::value_type> constant_labels)
      : Metrics(Labels(constant_labels)) {}

  Counter& AddCounter(const std::string& name, const std::string& help, const Labels& labels = {});
  Gauge& AddGauge(const std::string& name, const std::string& help, const Labels& labels = {});
  // `bounds` are ascending upper bounds; +Inf is added.
  Histogram& AddHistogram(const std::string& name, const std::string& help,
                          const std::vector<double>& bounds, const Labels& labels = {});
  // Text exposition format 0.0.4.
  std::string Serialize() const;
  // `hook` runs at the start of every Serialize(), with no lock held, for as long as this object
  // lives.
  void AddBeforeSerialize(std::function<void()> hook);

  static std::vector<double> SecondsBuckets();    // 1 ms .. 300 s
  static std::vector<double> StalenessBuckets();  // 0, 1, 2, 3, 4, 6, 8, 16 versions

 private:
  Labels constant_labels_;
  std::shared_ptr<prometheus::Registry> registry_;
  struct Hooks;
  std::shared_ptr<Hooks> hooks_;
};

// Where a role's wall time goes: exactly one state at a time, exported as
// millrace_<role>_time_seconds_total{state="..."} . For one thread's main loop; Enter() may be
// called from any thread.
class TimeSplit {
 public:
  TimeSplit(Metrics* metrics, const std::string& role);
  ~TimeSplit();
  // Leaves the present state and enters `state`, e.g. "busy", "wait_batch".
  void Enter(const std::string& state);
  // Seconds spent per state so far, the present one included.
  std::map<std::string, double> Seconds() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_COMMON_METRICS_H_
