// Who takes part in weight sync and how far each got: a state machine without lock, clock, thread
// or proto. The caller passes the time in.
//
// Invariants (tested): ids are never used twice; names are unique; every change of the set of
// members raises the epoch by one; an active version never goes down within one membership; a
// report about a version that was not offered changes nothing.
#ifndef MILLRACE_WEIGHT_SYNC_MEMBERSHIP_H_
#define MILLRACE_WEIGHT_SYNC_MEMBERSHIP_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weight_sync/publisher.h"

namespace millrace {

const char* SyncStageName(SyncStage stage);

class Membership {
 public:
  struct Options {
    absl::Duration timeout = absl::Seconds(30);  // a member silent for longer is removed
    // Others do not wait for buckets of a member that has been fetching for longer than this.
    absl::Duration slow_after = absl::Seconds(20);
    size_t max_members = 4096;
    // Ids count up from here. A restarted learner must begin elsewhere, so that no id of the one
    // before means somebody else now.
    uint64_t first_id = 1;
  };
  struct Member {
    uint64_t id = 0;
    std::string name;
    std::string control_address;
    std::string bucket_address;
    int64_t active_version = -1;
    int64_t offered_version = -1;        // newest offered; `stage` is about it
    SyncStage stage = SyncStage::kNone;  // kNone after the offer: not yet prepared
    bool holds = true;                   // can be a source of offered_version
    std::string last_error;
    absl::Time last_heard;
    absl::Time offered_at;
    bool syncing() const {
      return offered_version >= 0 && stage != SyncStage::kActivated && stage != SyncStage::kFailed;
    }
  };
  struct JoinInfo {
    std::string name;
    std::string control_address;
    std::string bucket_address;
  };

  explicit Membership(Options options) : options_(options), next_id_(options.first_id) {}

  // A member of the same name is replaced. INVALID_ARGUMENT for an empty name, RESOURCE_EXHAUSTED
  // when full.
  absl::StatusOr<uint64_t> Join(JoinInfo info, absl::Time now);
  // The rest answers NOT_FOUND naming the id when it is stale.
  absl::Status Heartbeat(uint64_t id, int64_t active_version, absl::Time now);
  // The member was told to fetch `version`: it goes to the end of that version's chain.
  absl::Status Offer(uint64_t id, int64_t version, absl::Time now);
  // A stage of `version`; FAILED_PRECONDITION when another version was offered, or the stage goes
  // backwards.
  absl::Status Report(uint64_t id, int64_t version, SyncStage stage, std::string error,
                      absl::Time now);
  // The member does not keep the bytes of `version`: it leaves the chain. Nothing happens unless
  // that was offered to it last.
  void Dropped(uint64_t id, int64_t version);
  absl::Status Leave(uint64_t id);
  // Removes the silent; returns their names.
  std::vector<std::string> Expire(absl::Time now);

  uint64_t epoch() const { return epoch_; }
  const std::map<uint64_t, Member>& members() const { return members_; }
  // Members that have `version` or are fetching it, in the order of the offers. Left out are those
  // that failed it, went on to another, dropped its bytes, or are slow.
  std::vector<const Member*> Chain(int64_t version, absl::Time now) const;
  // Versions that some member is still fetching.
  std::set<int64_t> VersionsInUse() const;

 private:
  absl::StatusOr<Member*> Find(uint64_t id);
  void LeaveChains(uint64_t id);

  const Options options_;
  uint64_t epoch_ = 0;
  uint64_t next_id_;
  std::map<uint64_t, Member> members_;               // by id
  std::map<int64_t, std::vector<uint64_t>> chains_;  // by version: ids in the order of the offers
};

// Where a member takes its buckets from: the `max_peers` before it in the chain, nearest first (so
// that the learner sends each byte about once, however many members there are), then the learner,
// which is always there. `chain` holds the bucket addresses of the members before it.
std::vector<std::string> PlanSources(const std::vector<std::string>& chain,
                                     const std::string& learner, size_t max_peers);

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_MEMBERSHIP_H_
