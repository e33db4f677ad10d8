// What a member does with one offered version: prepare, transfer, verify, activate. For one thread,
// but for Abort().
#ifndef MILLRACE_WEIGHT_SYNC_VERSION_FETCHER_H_
#define MILLRACE_WEIGHT_SYNC_VERSION_FETCHER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/metrics.h"
#include "weight_sync/bucket_server.h"
#include "weight_sync/subscriber.h"
#include "weight_sync/transport.h"

namespace millrace {

class VersionFetcher {
 public:
  struct Options {
    std::string member;
    absl::Duration activate_deadline = absl::Seconds(60);
  };
  struct Offer {
    VersionManifest manifest;         // valid
    std::vector<SyncSource> sources;  // best first
    absl::Time transfer_deadline;
  };
  // Bytes received for the version so far, and seconds since the offer was taken up.
  struct Progress {
    uint64_t bytes = 0;
    double seconds = 0;
    bool dropped = false;  // the bytes are not kept for other members
  };
  using OnStage = std::function<void(SyncStage, const Progress&)>;

  // `server`, `receiver` and `metrics` must outlive it. `transports` are tried in order.
  VersionFetcher(Options options, std::vector<std::unique_ptr<Transport>> transports,
                 BucketServer* server, WeightReceiver* receiver, Metrics* metrics);

  // Blocks until the version is active, or says in which stage which member failed and why.
  // `on_stage` hears of every stage reached but kFailed.
  absl::Status Fetch(const Offer& offer, const OnStage& on_stage);
  // Makes Fetch return CANCELLED soon, unless it is activating. Any thread.
  void Abort();

 private:
  absl::Status Transfer(const Offer& offer, Progress* progress,
                        std::shared_ptr<VersionAssembly>* assembly);
  absl::Status TransferBy(Transport* transport, const Offer& offer, Progress* progress,
                          std::shared_ptr<VersionAssembly>* assembly);
  absl::Status Staged(const char* stage, int64_t version, const absl::Status& status);
  void Count(const Transport& transport, const PullStats& stats);

  const Options options_;
  const std::vector<std::unique_ptr<Transport>> transports_;
  BucketServer* const server_;
  WeightReceiver* const receiver_;
  Metrics* const metrics_;
  VersionBufferPool pool_;
};

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_VERSION_FETCHER_H_
