// The buffer itself: group states (GroupStore) and the disk (BufferStore) behind one mutex, with
// callers that wait woken by changes. The gRPC service is a thin door in front of it.
//
// The state in memory is ahead of the disk for the time of one write; every answer waits until all
// that led to it is on disk. Replies run once, on a caller's, the timer's or the store's thread,
// with no lock held. Thread-safe. docs/buffer.md has the semantics.
#ifndef MILLRACE_BUFFER_BUFFER_CORE_H_
#define MILLRACE_BUFFER_BUFFER_CORE_H_

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "buffer/buffer_client.h"  // the structs of the answers
#include "buffer/buffer_store.h"
#include "buffer/group_store.h"
#include "common/clock.h"
#include "common/config.h"
#include "common/metrics.h"
#include "common/trajectory.h"

namespace millrace {

struct PushAnswer {
  PushOutcome outcome = PushOutcome::kStored;
  std::string reason;  // of kRefused
};

// A batch by name; its trajectories are read group by group.
struct BatchPlan {
  std::vector<uint64_t> groups;  // empty: see waiting_for
  std::map<std::string, uint64_t> dropped;
  std::string waiting_for;
};

class BufferCore {
 public:
  struct Options {
    std::string run;
    std::string store_path;
    bool sync = true;
    int64_t max_pages = 0;  // of the store, 0 = no limit
    // Largest trajectory, bytes in memory: a whole group must fit into one message of NextBatch.
    size_t max_trajectory_bytes = 7 << 20;
    GroupStoreOptions groups;
    Clock* clock = Clock::Real();
    Metrics* metrics = nullptr;
  };
  static Options FromConfig(const RunConfig& config, const std::string& run_dir);

  template <typename T>
  using Reply = std::function<void(absl::StatusOr<T>)>;
  using Done = std::function<void(absl::Status)>;
  using WaitId = uint64_t;

  static absl::StatusOr<std::unique_ptr<BufferCore>> Open(Options options);
  // Answers all who wait with UNAVAILABLE and writes what is queued.
  ~BufferCore();

  // Waits up to `wait` for admission; the answer is empty when the wait ran out.
  WaitId Lease(std::string server, uint32_t max_groups, absl::Duration wait,
               Reply<LeaseResult> reply);
  // Waits up to `wait` for enough groups.
  WaitId NextBatch(uint64_t step, int64_t version, absl::Duration wait, Reply<BatchPlan> reply);
  // The caller of a Lease or NextBatch has gone: its reply runs with CANCELLED, unless it has run
  // or is about to.
  void CancelWait(WaitId id);

  // GroupStore::Arrive. Returns at once; whatever is answered after it is answered behind it.
  void Arrive(const std::string& server, uint64_t instance);
  RenewResult Renew(const std::string& server, const std::vector<LeaseName>& leases);
  void Release(const std::string& server, const std::vector<LeaseName>& leases, Done done);
  // FAILED_PRECONDITION: of another run; RESOURCE_EXHAUSTED, UNAVAILABLE: it is not on disk.
  void Push(Trajectory trajectory, Reply<PushAnswer> reply);
  absl::StatusOr<std::vector<Trajectory>> ReadGroup(uint64_t group_id) {
    return store_->ReadGroup(group_id);
  }
  void Commit(uint64_t step, const Reply<uint64_t>& reply);
  void Rewind(uint64_t step, const Reply<RewindResult>& reply);
  void SetVersion(int64_t version, bool finished, Done done);

  BufferStats Stats();
  size_t queued_bytes() const { return store_->queued_bytes(); }
  const std::string& run() const { return options_.run; }
  absl::Status health() const { return store_->health(); }
  // Brings gauges and counters that follow the state up to date.
  void UpdateMetrics();

 private:
  // What to call once the lock is gone.
  using Actions = std::vector<std::function<void()>>;
  struct LeaseWait {
    WaitId id;
    std::string server;
    uint32_t max_groups;
    absl::Time deadline;
    Reply<LeaseResult> reply;
    std::vector<LeaseGrant> grants;
  };
  struct BatchWait {
    WaitId id;
    uint64_t step;
    int64_t version;
    absl::Time deadline;
    Reply<BatchPlan> reply;
  };
  struct Instruments;

  explicit BufferCore(Options options);
  int64_t NowMs() const { return absl::ToUnixMillis(options_.clock->Now()); }

  void Progress(Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ProgressBatches(Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ProgressLeases(Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AnswerLease(LeaseWait wait) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends waits whose deadline is at or before `until`.
  void EndWaits(absl::Time until, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes all changes of groups_; then `done`, with an error when they, or changes before them,
  // are not on disk.
  void Persist(Done done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnPersisted(const GroupStore::Changes& changes, uint64_t failures_before, const Done& done,
                   absl::Status status);
  void OnPushWritten(uint64_t group_id, const MemberSummary& member, absl::Status* status);
  void NoteFailure() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Answer(const Reply<PushAnswer>& reply, absl::Time begin, absl::StatusOr<PushAnswer> answer);

  void TimerLoop();
  absl::Time NextDeadline() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeTimerIfSooner() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  std::unique_ptr<Instruments> instruments_;
  std::unique_ptr<BufferStore> store_;

  absl::Mutex mu_;
  GroupStore groups_ ABSL_GUARDED_BY(mu_);
  std::list<LeaseWait> lease_waits_ ABSL_GUARDED_BY(mu_);
  std::list<BatchWait> batch_waits_ ABSL_GUARDED_BY(mu_);
  WaitId next_wait_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t write_failures_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time retry_write_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  BufferStats totals_ ABSL_GUARDED_BY(mu_);  // the counters that GroupStore does not keep
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool timer_wake_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time timer_until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  std::thread timer_;
};

}  // namespace millrace

#endif  // MILLRACE_BUFFER_BUFFER_CORE_H_
