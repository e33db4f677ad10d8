// How the bytes of one version come from a source to this member. A backend a file:
//   tcp_relay_transport.h   buckets over TCP, from peers or the learner; complete, works everywhere
//   same_host_transport.h   maps the learner's memory; same host only
//   nccl_transport.h        GPU collectives; built with MILLRACE_CUDA
#ifndef MILLRACE_WEIGHT_SYNC_TRANSPORT_H_
#define MILLRACE_WEIGHT_SYNC_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weight_sync/version_assembly.h"

namespace millrace {

// Somewhere to take a version from.
struct SyncSource {
  std::string address;   // as the transport understands it
  bool learner = false;  // the learner itself, which has every bucket; else a peer
};

// What a pull did, for metrics and reports.
struct PullStats {
  uint64_t bytes_from_learner = 0;
  uint64_t bytes_from_peers = 0;
  int digest_failures = 0;
  int source_failures = 0;  // a source was left for the next
};

struct PullRequest {
  VersionManifest manifest;
  std::vector<SyncSource> sources;  // best first
  absl::Time deadline = absl::InfiniteFuture();
  // Gives memory for the version; called at most once a pull, before the first byte. A transport
  // with memory of its own (a mapping) passes it in, the others pass null.
  std::function<absl::StatusOr<std::shared_ptr<VersionAssembly>>(std::shared_ptr<VersionBuffer>)>
      begin;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::string name() const = 0;  // metric label: "tcp", "same_host", "nccl"
  // Blocks until every bucket is in the assembly that `begin` gave, each with the right digest. An
  // error names the bucket and what became of each source. NOT_FOUND: no source of this transport
  // was among them or none was within reach, nothing was begun; another transport may try. One pull
  // at a time.
  virtual absl::Status Pull(const PullRequest& request, PullStats* stats) = 0;
  // Makes a Pull that is going on, and every later one, return CANCELLED soon. Any thread.
  virtual void Abort() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_TRANSPORT_H_
