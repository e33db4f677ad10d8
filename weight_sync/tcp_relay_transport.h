// Pulls the buckets of a version over TCP, in order, several requests ahead, from the first source
// that serves them. A source that is gone, slow or wrong is left for the next one, at the bucket
// where it stopped; the learner, as the last, is tried again with back-off. Thread-safe as
// Transport says.
#ifndef MILLRACE_WEIGHT_SYNC_TCP_RELAY_TRANSPORT_H_
#define MILLRACE_WEIGHT_SYNC_TCP_RELAY_TRANSPORT_H_

#include <atomic>
#include <string>

#include "weight_sync/bucket_reader.h"
#include "weight_sync/transport.h"

namespace millrace {

class TcpRelayTransport : public Transport {
 public:
  struct Options {
    std::string run;
    std::string token;
    absl::Duration patience = absl::Seconds(3);  // with one source, for one bucket
    size_t requests_ahead = 4;                   // at most kMaxRequestsAhead
    int bucket_retries = 1;  // of a bucket with a wrong digest, at the same source
    int last_retries = 3;    // rounds over the sources before the pull gives up
  };
  explicit TcpRelayTransport(Options options) : options_(std::move(options)) {}

  std::string name() const override { return "tcp"; }
  absl::Status Pull(const PullRequest& request, PullStats* stats) override;
  void Abort() override;

 private:
  // Fetches buckets from one source until the assembly is complete or the source fails.
  absl::Status PullFrom(const SyncSource& source, const PullRequest& request,
                        VersionAssembly* assembly, PullStats* stats);
  absl::Status FetchBucket(BucketReader* reader, const PullRequest& request,
                           VersionAssembly* assembly, uint64_t* bytes);

  const Options options_;
  std::atomic<bool> aborted_{false};
  WakeFd abort_;
};

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_TCP_RELAY_TRANSPORT_H_
