// The metrics of BufferCore. Thread-safe, as prometheus-cpp's objects are.
#ifndef MILLRACE_BUFFER_BUFFER_INSTRUMENTS_H_
#define MILLRACE_BUFFER_BUFFER_INSTRUMENTS_H_

#include "buffer/buffer_core.h"
#include "common/metrics.h"

namespace millrace {

struct BufferCore::Instruments {
  explicit Instruments(Metrics* metrics);
  Counter& Pushes(const char* result);
  Gauge& Gauged(const char* name, const char* help);

  Metrics* metrics;
  Counter &push_stored, &push_duplicate, &push_refused, &push_errors;
  Histogram &push_seconds, &staleness;
  Gauge &active_leases, &leased, &ready, &assigned, &committed, &window, &drop_rate, &version,
      &queued_bytes, &waiting;
  Counter &expired_leases, &dropped_tokens;
};

}  // namespace millrace

#endif  // MILLRACE_BUFFER_BUFFER_INSTRUMENTS_H_
