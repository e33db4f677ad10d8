// The rollout server's side of weight sync: one thread that polls for a newer version, pulls its
// buckets from peers or the learner, serves them on to others (unless they are the learner's own
// memory, on the same host), verifies every digest, and hands the
// whole version to a receiver. A version is whole or absent. Thread-safe.
#ifndef MILLRACE_WEIGHT_SYNC_SUBSCRIBER_H_
#define MILLRACE_WEIGHT_SYNC_SUBSCRIBER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/metrics.h"
#include "weight_sync/publisher.h"

namespace millrace {

// Takes a verified version into use.
class WeightReceiver {
 public:
  virtual ~WeightReceiver() = default;
  // Checks that names, dtypes and shapes are those of the model, before a byte is moved.
  virtual absl::Status Prepare(int64_t version,
                               absl::Span<const NamedSpan> tensors_without_bytes) = 0;
  // Makes `version` the active one; returns when it is. `tensors` are valid during the call only.
  // On an error the old version stays.
  virtual absl::Status Activate(int64_t version, absl::Span<const NamedSpan> tensors,
                                absl::Time deadline) = 0;
};

class Subscriber {
 public:
  struct Options {
    std::string run;
    std::string member;           // unique name
    std::string publisher;        // host:port of the WeightSync service
    std::string control_address;  // of this member's Rollout service
    std::string bucket_listen = "0.0.0.0:0";
    std::string advertise = "127.0.0.1";  // host under which peers reach the bucket socket
    std::string token;
    absl::Duration activate_deadline = absl::Seconds(60);
    absl::Duration retry_for = absl::Seconds(600);  // how long an unreachable learner is waited for
    bool same_host = true;  // take the learner's memory when it is on this host and offers it
    absl::Duration source_patience = absl::Seconds(3);  // with one source, for one bucket
  };
  // Returns at once; joins and polls on its own thread, rejoining whenever the learner restarts.
  // `receiver` must outlive it.
  static absl::StatusOr<std::unique_ptr<Subscriber>> Start(Options options,
                                                           WeightReceiver* receiver,
                                                           Metrics* metrics);
  ~Subscriber();  // leaves and joins the thread

  int64_t active_version() const;  // -1 before the first
  bool finished() const;           // the learner said the run is over
  // Waits until active_version() >= version. DEADLINE_EXCEEDED says which stage the newest version
  // is in.
  absl::Status WaitForVersion(int64_t version, absl::Duration timeout);
  absl::Status health() const;  // not OK when the learner has been silent for longer than retry_for

 private:
  struct Impl;
  explicit Subscriber(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_SUBSCRIBER_H_
