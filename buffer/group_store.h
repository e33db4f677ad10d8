// The state of all groups of a run: the heart of the buffer as plain code, without lock, clock,
// thread, disk or proto. Time comes in as milliseconds since 1970. Not thread-safe (BufferCore
// locks).
//
//            lease              all G members stored        TakeBatch          Commit
//   (new) ----------> leased ------------------------> ready ---------> assigned -------->
//   committed
//                     |    ^                             |  ^               |                  |
//    expiry, release  |    | leased again (attempt + 1)  |  +---------------+------ Rewind ----+
//                     +----+                             v
//                     +------------------------------> dropped(reason)
//
// Every change marks the group dirty; the owner writes TakeDirty() to disk before it answers
// whoever caused the change. Restoring the rows and members gives the same state again.
#ifndef MILLRACE_BUFFER_GROUP_STORE_H_
#define MILLRACE_BUFFER_GROUP_STORE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "buffer/admission.h"
#include "buffer/degenerate_filter.h"
#include "buffer/prompt_source.h"
#include "buffer/staleness.h"
#include "common/trajectory.h"

namespace millrace {

struct GroupStoreOptions {
  std::string task;
  uint64_t run_seed = 0;
  uint64_t problems = 0;  // size of the train split, 0 = endless
  uint32_t group_size = 8;
  AdmissionConfig admission;
  int64_t max_staleness = 4;  // updates; 0 is enforced when admission.version_lead is 0
  bool retry_stale = false;   // a stale group's problem is given out again as a new group
  uint32_t max_attempts = 5;  // leases of one group that may run out before it is dropped
  int64_t lease_ms = 120000;
  // The newest ended groups whose late pushes are told from repeated ones; those of older groups
  // are refused. Bounds the memory of a long run.
  size_t remembered_groups = 1 << 16;
  // The payloads of groups that ended more than so many committed steps ago are removed from the
  // store; 0 = never. Those that Rewind can still return are kept in any case.
  uint64_t keep_steps = 0;
  absl::Status Validate() const;
};

enum class GroupState { kLeased, kReady, kAssigned, kCommitted, kDropped };
const char* ToString(GroupState state);

// What a group's row in the store holds. Members are in their own rows.
struct GroupRow {
  uint64_t group_id = 0;
  GroupState state = GroupState::kLeased;
  std::string reason;  // why it was dropped
  std::string detail;  // the same for people
  uint64_t problem_id = 0;
  uint64_t seed = 0;
  uint32_t group_size = 0;
  uint32_t leases = 0;  // leases so far; the newest attempt is leases - 1
  uint32_t expired_leases = 0;
  std::string holder;             // server that has, or last had, the lease
  int64_t lease_deadline_ms = 0;  // 0 = nobody has the lease
  int64_t min_version = 0;
  int64_t oldest_version = -1;  // among sampled tokens of the usable stored members; -1 = none
  int64_t newest_version = -1;
  int64_t sampled_tokens = 0;  // of all stored members
  double reward_mean = 0;      // of the usable members, once complete
  uint64_t step = 0;           // learner step it was handed out for, last; 0 = none yet
  uint32_t position = 0;       // within that batch
  int64_t created_ms = 0, ready_ms = 0, assigned_ms = 0, ended_ms = 0;
};

// What the policies need to know of one stored trajectory.
struct MemberSummary {
  uint32_t index = 0;
  uint32_t attempt = 0;
  TrajectoryStatus status = TrajectoryStatus::kCompleted;
  double reward = 0;
  int64_t oldest_version = -1;
  int64_t newest_version = -1;
  int64_t sampled_tokens = 0;
  bool pruned = false;  // its payload was removed from the store
};

// One batch that was handed out.
struct BatchRow {
  uint64_t step = 0;
  int64_t version = 0;                      // of the weights it is trained on top of
  std::map<std::string, uint64_t> dropped;  // groups dropped since the previous batch, by reason
};

// Counters and positions that survive a restart besides the rows.
struct GroupStoreMeta {
  uint64_t next_group_id = 1;
  uint64_t next_position = 0;  // of the prompt source
  int64_t version = -1;        // learner's newest, -1 = none yet
  bool finished = false;
  uint64_t last_step = 0;       // newest step that was handed a batch
  uint64_t committed_step = 0;  // newest committed step
  int64_t pending_rewind = -1;  // step of a restarted learner that has not published yet
  double drop_rate = 0;
  std::map<std::string, uint64_t> reported_drops;  // totals when the last batch was made
  std::vector<Lineage::Branch> lineage;
  std::map<std::string, uint64_t> instances;  // newest process of each server, see Arrive()
};

struct LeaseGrant {
  uint64_t group_id = 0;
  uint32_t attempt = 0;
  uint64_t problem_id = 0;
  uint64_t seed = 0;
  uint32_t group_size = 0;
  std::vector<uint32_t> missing;
  int64_t min_version = 0;
  int64_t deadline_ms = 0;
};

struct PushVerdict {
  enum Kind { kAccept, kDuplicate, kRefuse } kind = kAccept;
  std::string reason;  // of kRefuse
};

struct PushSubject {
  uint64_t group_id = 0;
  uint32_t index = 0;
  uint32_t attempt = 0;
  uint64_t problem_id = 0;
};

struct GroupCounts {
  InFlight in_flight;     // what admission counts
  int64_t assigned = 0;   // handed out and not committed
  int64_t committed = 0;  // since the start of the run
  int64_t active_leases = 0;
  int64_t expired_leases = 0;
  int64_t window = 0;
  std::map<std::string, uint64_t> dropped;  // groups since the start of the run, by reason
  int64_t dropped_tokens = 0;
  double drop_rate = 0;
};

class GroupStore {
 public:
  explicit GroupStore(GroupStoreOptions options);

  // --- Leases.
  // `server` is now the process that began as `instance` (microseconds since 1970; 0 = unknown).
  // The leases that an older process of that name held end as if they had run out, since it is
  // gone; a process that is itself the older one ends none. Returns how many ended.
  int Arrive(const std::string& server, uint64_t instance, int64_t now_ms);
  // Up to `max` groups for `server`: first those whose lease ended, oldest first, then new ones as
  // admission allows.
  std::vector<LeaseGrant> Grant(const std::string& server, uint32_t max, int64_t now_ms);
  // True when Grant would give at least one.
  bool CanGrant() const;
  // Why CanGrant() is false, for people.
  std::string WhyNoLease() const;
  // True when `server` still holds this lease; its deadline is moved to now + lease_ms.
  bool Renew(const std::string& server, uint64_t group_id, uint32_t attempt, int64_t now_ms);
  void Release(const std::string& server, uint64_t group_id, uint32_t attempt);
  // Ends leases whose deadline has passed; returns how many.
  int ExpireLeases(int64_t now_ms);
  // Earliest lease deadline, INT64_MAX when there is no lease.
  int64_t NextLeaseDeadline() const;

  // --- Members. kAccept reserves the index until Confirm (it is on disk) or Unreserve (it is not).
  PushVerdict Reserve(const PushSubject& push);
  void Confirm(uint64_t group_id, const MemberSummary& member, int64_t now_ms);
  void Unreserve(uint64_t group_id, uint32_t index);

  // --- Batches.
  // The groups of step's batch, in order; empty when there are not enough ready ones yet. The same
  // step gives the same groups until Commit or Rewind. `version`: weights that will be trained.
  // FAILED_PRECONDITION when the step is committed or not the next one.
  absl::StatusOr<std::vector<uint64_t>> TakeBatch(uint64_t step, int64_t version, int64_t now_ms);
  // The batch of a step that was handed out and not rewound, nullptr otherwise.
  const BatchRow* FindBatch(uint64_t step) const;
  std::string WhyNoBatch() const;
  // Marks all batches of steps <= step; returns how many groups that were not marked before.
  absl::StatusOr<uint64_t> Commit(uint64_t step, int64_t now_ms);
  // The learner has the weights of `step` again. Returns how many groups became ready.
  absl::StatusOr<uint64_t> Rewind(uint64_t step, int64_t now_ms);
  // FAILED_PRECONDITION when the version is below the newest one, or not above it after a rewind.
  absl::Status SetVersion(int64_t version, bool finished, int64_t now_ms);
  int64_t StalenessOf(uint64_t group_id, int64_t version) const;

  // --- State.
  GroupCounts Counts() const;
  const GroupStoreMeta& meta() const { return meta_; }
  const GroupStoreOptions& options() const { return options_; }
  const GroupRow* Find(uint64_t group_id) const;

  // --- Persistence. Rows changed since the last call; a failed write is undone by MarkDirty.
  struct Changes {
    std::vector<GroupRow> groups;
    std::vector<BatchRow> batches;
    int64_t forget_batches_after = -1;  // delete batch rows of steps above this; -1 = none. First.
    std::vector<uint64_t> prune;        // groups whose payloads go. Last.
    bool meta_changed = false;
    bool empty() const {
      return groups.empty() && batches.empty() && forget_batches_after < 0 && prune.empty() &&
             !meta_changed;
    }
  };
  Changes TakeDirty();
  void MarkDirty(const Changes& changes);
  // Order: RestoreMeta, RestoreBatch, then RestoreGroup for each row with its members. Leases of
  // the previous life are continued with a whole lease_ms; complete groups that were not judged
  // are.
  void RestoreMeta(GroupStoreMeta meta);
  void RestoreBatch(BatchRow batch);
  void RestoreGroup(const GroupRow& row, absl::Span<const MemberSummary> members, int64_t now_ms);

 private:
  struct Member {
    enum State : uint8_t { kMissing, kReserved, kStored } state = kMissing;
    MemberSummary summary;
  };
  struct Group {
    GroupRow row;
    std::vector<Member> members;
    uint32_t stored = 0;
  };
  // What is left of groups that are done with: enough to answer late pushes.
  struct Ended {
    GroupState state = GroupState::kDropped;
    std::string reason;
    std::vector<int64_t> attempts;  // by index; -1 = never stored
  };

  Group& NewGroup(uint64_t problem_id, int64_t now_ms);
  LeaseGrant GrantGroup(Group& group, const std::string& server, int64_t now_ms);
  bool AwaitingVersion() const { return meta_.version < 0 || meta_.pending_rewind >= 0; }
  int64_t MinVersion() const;
  int64_t MaxStaleness() const;
  InFlight CountInFlight() const;
  bool Settled(uint64_t step) const;
  void EndLease(Group& group);
  // The lease ended without its holder's word.
  void RunOut(Group& group, int64_t now_ms);
  void Complete(Group& group, int64_t now_ms);
  void Drop(Group& group, absl::string_view reason, std::string detail, int64_t now_ms);
  void DropStale(int64_t version, int64_t now_ms);
  void ForgetCommitted();
  std::vector<uint64_t> TakePrunable();
  void End(Group& group);
  void AddMember(Group& group, const MemberSummary& member);
  void Touch(const Group& group) { dirty_.insert(group.row.group_id); }
  void TouchMeta() { dirty_meta_ = true; }

  // Order in which ready groups are taken: those of a rewound batch first, as they were; then by
  // oldest sampled version, then by id.
  struct ReadyKey {
    uint64_t step, position;
    int64_t updates;
    uint64_t group_id;
    auto operator<=>(const ReadyKey&) const = default;
  };
  ReadyKey KeyOf(const GroupRow& row) const;

  const GroupStoreOptions options_;
  const PromptSource prompts_;
  GroupStoreMeta meta_;
  Lineage lineage_;
  DropRate drop_rate_;

  std::map<uint64_t, Group> groups_;  // all that are not in ended_
  std::unordered_map<uint64_t, Ended> ended_;
  std::deque<uint64_t> ended_order_;  // keys of ended_, oldest end first
  // Newest step when they ended -> ended groups whose payloads are there; empty without keep_steps.
  std::map<uint64_t, std::vector<uint64_t>> prunable_;
  std::set<uint64_t> open_;                           // kLeased, but held by nobody now
  std::set<std::pair<int64_t, uint64_t>> deadlines_;  // kLeased and held: (ms, group)
  std::set<ReadyKey> ready_;
  std::map<uint64_t, std::vector<uint64_t>> assigned_;   // step -> groups by position
  std::map<uint64_t, std::vector<uint64_t>> committed_;  // the newest steps, kept for Rewind
  std::map<uint64_t, BatchRow> batches_;                 // of assigned_ and committed_
  uint64_t asked_step_ = 0;      // newest step that asked for a batch: the ones before are trained
  uint64_t forgotten_step_ = 0;  // committed steps up to here are in ended_

  int64_t committed_groups_ = 0;
  int64_t expired_leases_ = 0;
  std::map<std::string, uint64_t> dropped_;
  int64_t dropped_tokens_ = 0;

  std::set<uint64_t> dirty_;
  std::set<uint64_t> dirty_batches_;
  std::map<uint64_t, GroupRow> dirty_ended_;  // rows of groups that left groups_
  int64_t forget_batches_after_ = -1;
  bool dirty_meta_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_BUFFER_GROUP_STORE_H_
