// Serves the buckets of the versions this process has to other processes, over the bucket stream
// (bucket_stream.h). One thread. A bucket that has not arrived here yet is waited for, so that a
// member relays while it still receives. Bytes go from the version's memfd to the socket without a
// copy; a reader on the same host gets the memfd itself through a Unix socket. Thread-safe.
#ifndef MILLRACE_WEIGHT_SYNC_BUCKET_SERVER_H_
#define MILLRACE_WEIGHT_SYNC_BUCKET_SERVER_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/metrics.h"
#include "weight_sync/version_bytes.h"

namespace millrace {

class BucketServer {
 public:
  struct Options {
    std::string listen = "0.0.0.0:0";
    std::string run;
    std::string token;
    std::string kind = "peer";  // "learner" or "peer": label of the byte counters
    bool same_host = true;      // also listen on an abstract Unix socket
    size_t max_connections = 256;
    absl::Duration hello_timeout = absl::Seconds(5);
    absl::Duration idle_timeout = absl::Seconds(60);   // between requests
    absl::Duration stall_timeout = absl::Seconds(30);  // a reader that takes no bytes
    absl::Duration max_wait = absl::Seconds(60);       // bound of the wait_ms a reader may ask for
  };
  static absl::StatusOr<std::unique_ptr<BucketServer>> Start(Options options, Metrics* metrics);
  ~BucketServer();  // closes every connection and joins the thread

  int port() const;
  // Name of the abstract Unix socket; empty without same_host.
  std::string same_host_name() const;
  // To be called when a bucket of an offered version has become ready (VersionBytes' on_change).
  void Wake();
  // Serves `version` from now on, in place of an earlier one with the same number.
  void Offer(std::shared_ptr<VersionBytes> version);
  // Forgets the versions below the highest of `versions` that are not among them. Connections that
  // read a forgotten one keep it until they close.
  void Retain(const std::set<int64_t>& versions);
  // Forgets `version`, as Retain does. Who asks for a forgotten one, or an older one that is not
  // here, is told at once.
  void Forget(int64_t version);
  // Payload bytes sent over TCP so far.
  uint64_t sent_bytes() const;

 private:
  struct Impl;
  explicit BucketServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_BUCKET_SERVER_H_
