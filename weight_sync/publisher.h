// The learner's side of weight sync: keeps the bytes of the newest version, announces it, serves
// buckets, tracks members. Bytes only: no torch. Thread-safe.
#ifndef MILLRACE_WEIGHT_SYNC_PUBLISHER_H_
#define MILLRACE_WEIGHT_SYNC_PUBLISHER_H_

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

namespace millrace {

// One parameter as bytes on the host, e.g. {"model.norm.weight", "F32", {576}, ...}. dtype is
// spelled as safetensors does.
struct NamedSpan {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  absl::Span<const std::byte> bytes;
};

enum class SyncStage { kNone, kPrepared, kTransferred, kVerified, kActivated, kFailed };

struct MemberInfo {
  std::string member;
  std::string control_address;  // of its Rollout service
  int64_t active_version = -1;
  SyncStage stage = SyncStage::kNone;  // of the newest version offered to it
  std::string last_error;
  absl::Duration since_heard;
};

class Publisher {
 public:
  struct Options {
    std::string run;
    std::string listen = "0.0.0.0:0";         // gRPC control (the WeightSync service)
    std::string bucket_listen = "0.0.0.0:0";  // bucket sockets
    std::string advertise = "127.0.0.1";      // host under which members reach the bucket socket
    std::string token;
    int64_t bucket_bytes = 8 << 20;
    absl::Duration transfer_deadline = absl::Seconds(120);
    absl::Duration heartbeat = absl::Seconds(5);
    absl::Duration member_timeout = absl::Seconds(30);
    // Members on this host map the version's memory instead of receiving it over TCP.
    bool same_host = true;
    int copy_threads = 2;  // of Publish
  };
  static absl::StatusOr<std::unique_ptr<Publisher>> Start(const Options& options, Metrics* metrics);
  ~Publisher();

  std::string control_address() const;  // host:port to give to members

  // Copies the bytes (the caller may change them after the return), computes digests, and offers
  // `version` to every member. Does not wait for them. `version` must be above the last one. A
  // version that is still being transferred stays whole until its readers are done; where there
  // are none its memory is used again, and who joins meanwhile waits for the new one. After
  // RESOURCE_EXHAUSTED no version may be on offer until the next Publish.
  absl::Status Publish(int64_t version, absl::Span<const NamedSpan> tensors);
  // Waits until at least `members` members have activated a version >= `version`. DEADLINE_EXCEEDED
  // names who has not, and their stage.
  absl::Status WaitActivated(int64_t version, int members, absl::Duration timeout);
  std::vector<MemberInfo> Members();
  int64_t version() const;  // newest published, -1 before the first
  // Tells members that the run is over (their subscriber's finished() turns true).
  void Finish();

 private:
  struct Impl;
  explicit Publisher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_PUBLISHER_H_
