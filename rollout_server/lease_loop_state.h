// The insides of LeaseLoop: lease_loop.cc has the loop, lease_loop_samples.cc what happens to a
// group from submission to the buffer's answer.
#ifndef MILLRACE_ROLLOUT_SERVER_LEASE_LOOP_STATE_H_
#define MILLRACE_ROLLOUT_SERVER_LEASE_LOOP_STATE_H_

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rollout_server/group_book.h"
#include "rollout_server/lease_loop.h"
#include "rollout_server/loop_metrics.h"
#include "rollout_server/sample_builder.h"

namespace millrace {

// What the samples of one group share.
struct RunningGroup {
  TrajectoryOrigin origin;
  PreparedProblem prepared;
};

struct EndedSample {
  std::shared_ptr<const RunningGroup> group;
  GeneratedSample sample;
  int64_t unix_us = 0;
};

// Lives as long as the last callback of the engine or the buffer that may still come.
struct LeaseLoop::State : std::enable_shared_from_this<LeaseLoop::State> {
  State(Options o, Parts p) : options(std::move(o)), parts(p), metrics(p.metrics) {}

  const Options options;
  const Parts parts;
  LoopMetrics metrics;
  std::vector<std::thread> verifiers;  // touched by the constructor and destructor of LeaseLoop

  mutable absl::Mutex mu;
  GroupBook book ABSL_GUARDED_BY(mu);
  std::deque<EndedSample> to_verify ABSL_GUARDED_BY(mu);
  std::vector<LeaseName> to_release ABSL_GUARDED_BY(mu);
  std::vector<Trajectory> to_replace ABSL_GUARDED_BY(mu);  // FAILED ones, for refused pushes
  bool evaluating ABSL_GUARDED_BY(mu) = false;  // at the last turn: samples that are not ours ran
  bool wake ABSL_GUARDED_BY(mu) = false;        // something happened that the loop may act on
  bool draining ABSL_GUARDED_BY(mu) = false;
  bool closing ABSL_GUARDED_BY(mu) = false;
  absl::Time buffer_ok_at ABSL_GUARDED_BY(mu);
  absl::Time logged_at ABSL_GUARDED_BY(mu) = absl::InfinitePast();
  absl::Status buffer_error ABSL_GUARDED_BY(mu);
  int64_t failed_groups ABSL_GUARDED_BY(mu) = 0;      // in a row
  int64_t cancelled_samples ABSL_GUARDED_BY(mu) = 0;  // in a row, and not by us
  absl::Status last_failure ABSL_GUARDED_BY(mu);      // of failed_groups

  absl::Time Now() const { return parts.clock->Now(); }
  static LeaseName NameOf(const GroupLease& lease) { return {lease.group_id, lease.attempt}; }

  // Steps of the loop, none of them holding the lock while it calls out.
  void RenewDue() ABSL_LOCKS_EXCLUDED(mu);
  void GiveBackOverdue() ABSL_LOCKS_EXCLUDED(mu);
  void ReleaseQueued() ABSL_LOCKS_EXCLUDED(mu);
  absl::Status CheckStreaks() ABSL_LOCKS_EXCLUDED(mu);
  absl::Time Nearer(absl::Time deadline) const {
    return std::min(deadline, Now() + options.lease_length);
  }
  void PushReplacements() ABSL_LOCKS_EXCLUDED(mu);
  absl::Status SubmitReady(int64_t active) ABSL_LOCKS_EXCLUDED(mu);
  absl::StatusOr<bool> LeaseMore() ABSL_LOCKS_EXCLUDED(mu);  // true: the run is finished
  void AwaitWake(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu);
  void NoteBuffer(const absl::Status& status, const char* call) ABSL_LOCKS_EXCLUDED(mu);
  void UpdateGauges() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void EnterState() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  void SubmitGroup(std::shared_ptr<const RunningGroup> group) ABSL_LOCKS_EXCLUDED(mu);
  void FailGroup(const RunningGroup& group, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu);
  void OnSample(std::shared_ptr<const RunningGroup> group, GeneratedSample sample)
      ABSL_LOCKS_EXCLUDED(mu);
  void VerifyLoop() ABSL_LOCKS_EXCLUDED(mu);
  void VerifyAndPush(EndedSample ended) ABSL_LOCKS_EXCLUDED(mu);
  void Push(const Trajectory& trajectory) ABSL_LOCKS_EXCLUDED(mu);
  // `replacement`: pushed instead when the buffer refuses this one; nullptr for a replacement.
  void OnPushed(const TrajectoryKey& key, const absl::StatusOr<PushOutcome>& outcome,
                const std::string& reason, Trajectory* replacement) ABSL_LOCKS_EXCLUDED(mu);
};

}  // namespace millrace

#endif  // MILLRACE_ROLLOUT_SERVER_LEASE_LOOP_STATE_H_
