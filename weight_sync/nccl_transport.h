// Broadcasts a version from the learner's GPU to the members' GPUs with NCCL, bucket by bucket
// through two staging buffers: while one is broadcast the other is copied. A broadcast is
// lock-step, so one dead member stops all: each rank has a deadline of its own, aborts its
// communicator when it passes, and says so; the version is then fetched over TCP, or a new group is
// formed.
#ifndef MILLRACE_WEIGHT_SYNC_NCCL_TRANSPORT_H_
#define MILLRACE_WEIGHT_SYNC_NCCL_TRANSPORT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "weight_sync/nccl_api.h"
#include "weight_sync/transport.h"

namespace millrace {

inline constexpr char kNcclPrefix[] = "nccl:";

// "nccl:RANK/RANKS:HEXID": the place of one member in a group, as a source address.
struct NcclPlace {
  int rank = 0;  // 0 is the learner
  int ranks = 0;
  std::string unique_id;
};
std::string FormatNcclPlace(const NcclPlace& place);
absl::StatusOr<NcclPlace> ParseNcclPlace(const std::string& address);

// One rank of one group. Errors name rank, ranks and bucket. For one thread, but for Abort().
class NcclRank {
 public:
  NcclRank(std::unique_ptr<NcclApi> api, NcclPlace place, Clock* clock);

  // Forms the communicator with the other ranks.
  absl::Status Form(absl::Time deadline);
  // Rank 0: broadcasts a whole version.
  absl::Status Send(const VersionBytes& version, absl::Time deadline);
  // The others: receives it; every bucket's digest is checked.
  absl::Status Receive(VersionAssembly* assembly, absl::Time deadline);
  // Makes the call under way return CANCELLED soon. Any thread.
  void Abort();

 private:
  using AfterBucket = std::function<absl::Status(size_t bucket)>;
  // Rank 0 broadcasts from `base`, the others into it.
  absl::Status Broadcast(const VersionManifest& manifest, absl::Time deadline, std::byte* base,
                         const AfterBucket& after);
  absl::Status Enqueue(const VersionManifest& manifest, size_t bucket, std::byte* base);
  // Polls `done` until it says true.
  absl::Status WaitFor(const std::function<absl::StatusOr<bool>()>& done, absl::Time deadline,
                       const std::string& what);
  // An error ends the communicator: NCCL promises nothing about it any more.
  absl::Status Fail(const absl::Status& status);

  const std::unique_ptr<NcclApi> api_;
  const NcclPlace place_;
  Clock* const clock_;
  absl::Mutex mu_;
  bool aborted_ ABSL_GUARDED_BY(mu_) = false;
};

// A member's end as a Transport: takes the place that the learner named as a source.
class NcclTransport : public Transport {
 public:
  using MakeApi = std::function<absl::StatusOr<std::unique_ptr<NcclApi>>()>;
  NcclTransport(MakeApi make_api, Clock* clock) : make_api_(std::move(make_api)), clock_(clock) {}

  std::string name() const override { return "nccl"; }
  absl::Status Pull(const PullRequest& request, PullStats* stats) override;
  void Abort() override;

 private:
  const MakeApi make_api_;
  Clock* const clock_;
  absl::Mutex mu_;
  bool aborted_ ABSL_GUARDED_BY(mu_) = false;
  NcclRank* running_ ABSL_GUARDED_BY(mu_) = nullptr;
};

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_NCCL_TRANSPORT_H_
