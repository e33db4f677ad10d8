// The WeightSync service: members join, wait for versions, and report. Policy is in membership.h;
// this is the door: RPCs (callback API, so that waiting members hold no thread), the lock, and one
// thread for what falls due. Thread-safe.
#ifndef MILLRACE_WEIGHT_SYNC_COORDINATOR_H_
#define MILLRACE_WEIGHT_SYNC_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/metrics.h"
#include "proto/weight_sync.grpc.pb.h"
#include "weight_sync/publisher.h"

namespace millrace {

class Coordinator {
 public:
  struct Options {
    std::string run;
    std::string token;
    std::string learner_address;    // host:port of the learner's bucket server
    std::string same_host_address;  // offered first when not empty
    size_t relay_peers = 2;         // peers named to a member before the learner
    absl::Duration transfer_deadline = absl::Seconds(120);
    absl::Duration heartbeat = absl::Seconds(5);
    absl::Duration member_timeout = absl::Seconds(30);
  };
  // `on_versions_in_use` is called, with no lock held, with the newest version and those that some
  // member is still fetching, whenever that may have changed.
  Coordinator(Options options, Metrics* metrics,
              std::function<void(const std::set<int64_t>&)> on_versions_in_use);
  ~Coordinator();

  grpc::Service* service();
  // Offers a version to everybody; waiting polls are answered at once.
  void SetVersion(v1::Manifest manifest);
  // Takes the newest version back, so that its memory can be used for the next: polls wait until
  // SetVersion. False, with nothing changed, while some member is still fetching it.
  bool Withdraw();
  // Every poll is answered with finished.
  void Finish();
  // Answers everything that waits, and refuses what comes. To be called before the gRPC server is
  // shut down.
  void Shutdown();

  absl::Status WaitActivated(int64_t version, int members, absl::Duration timeout);
  std::vector<MemberInfo> Members();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_COORDINATOR_H_
