// Exponential back-off with jitter: pure policy, no clock, no sleeping; the caller waits. Not
// thread-safe.
#ifndef MILLRACE_COMMON_BACKOFF_H_
#define MILLRACE_COMMON_BACKOFF_H_

#include <cstdint>
#include <random>

#include "absl/time/time.h"

namespace millrace {

class Backoff {
 public:
  struct Options {
    absl::Duration initial = absl::Milliseconds(100);
    absl::Duration max = absl::Seconds(5);
    double multiplier = 2;
    // A delay is drawn from [1 - jitter, 1] of its nominal length, so it never passes `max`.
    double jitter = 0.25;
  };
  Backoff(Options options, uint64_t seed) : options_(options), random_(seed) {}

  // The delay before the next try; the nominal length grows with every call.
  absl::Duration Next();
  // After a success: the next delay is the first again.
  void Reset() { failures_ = 0; }
  int failures() const { return failures_; }  // Next() calls since the last Reset()

 private:
  const Options options_;
  std::mt19937_64 random_;
  int failures_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_COMMON_BACKOFF_H_
