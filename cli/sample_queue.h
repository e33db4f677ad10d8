// Samples that ended, from the engine's thread to the command's. Thread-safe.
#ifndef MILLRACE_CLI_SAMPLE_QUEUE_H_
#define MILLRACE_CLI_SAMPLE_QUEUE_H_

#include <cstddef>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "rollout_server/engine.h"

namespace millrace {

struct EndedSample {
  size_t request = 0;  // the command's own number
  GeneratedSample sample;
};

class SampleQueue {
 public:
  void Put(EndedSample ended) {
    absl::MutexLock lock(&mu_);
    items_.push_back(std::move(ended));
  }
  // DEADLINE_EXCEEDED after `patience`; ABORTED for a sample that the engine cancelled.
  absl::StatusOr<EndedSample> Take(absl::Duration patience = absl::Minutes(10)) {
    absl::MutexLock lock(&mu_);
    const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !items_.empty(); };
    Clock* clock = Clock::Real();
    if (!clock->AwaitWithDeadline(&mu_, absl::Condition(&ready), clock->Now() + patience)) {
      return absl::DeadlineExceededError(absl::StrCat("waited ", absl::FormatDuration(patience),
                                                      " for a sample of the engine to end"));
    }
    EndedSample ended = std::move(items_.front());
    items_.pop_front();
    if (ended.sample.reason == FinishReason::kCancelled) {
      return absl::AbortedError(
          absl::StrCat("the engine cancelled a sample of request ", ended.request));
    }
    return ended;
  }

 private:
  absl::Mutex mu_;
  std::deque<EndedSample> items_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_CLI_SAMPLE_QUEUE_H_
