// The door to the buffer for rollout servers and the learner. Thread-safe. Calls block up to their
// deadline; transport errors are retried with back-off inside it (all calls are idempotent), so a
// restarted buffer is invisible but for the time it takes.
#ifndef MILLRACE_BUFFER_BUFFER_CLIENT_H_
#define MILLRACE_BUFFER_BUFFER_CLIENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/trajectory.h"

namespace millrace {

struct GroupLease {
  uint64_t group_id = 0;
  uint32_t attempt = 0;
  std::string task;
  uint64_t problem_id = 0;
  uint64_t seed = 0;
  uint32_t group_size = 0;
  std::vector<uint32_t> missing;  // indices that are not in the buffer yet
  int64_t min_version = 0;
  absl::Time deadline;
};

struct LeaseName {
  uint64_t group_id = 0;
  uint32_t attempt = 0;
  friend bool operator==(const LeaseName&, const LeaseName&) = default;
};

struct LeaseResult {
  std::vector<GroupLease> leases;  // empty: see waiting_for
  std::string waiting_for;
  bool finished = false;  // the run needs no more groups
};

struct RenewResult {
  std::vector<LeaseName> lost;
  absl::Time deadline;  // of the others
};

enum class PushOutcome { kStored, kDuplicate, kRefused };

struct BatchGroup {
  uint64_t group_id = 0;
  std::vector<Trajectory> trajectories;  // by index
};

struct Batch {
  uint64_t step = 0;
  std::vector<BatchGroup> groups;
  std::map<std::string, uint64_t> dropped;  // groups dropped since the previous batch, by reason
};

struct RewindResult {
  uint64_t returned_groups = 0;
  uint64_t committed_step = 0;
  int64_t last_version = 0;
};

struct BufferStats {
  uint64_t leased_groups = 0, ready_groups = 0, assigned_groups = 0, committed_groups = 0;
  std::map<std::string, uint64_t> dropped_groups;
  uint64_t stored_trajectories = 0, duplicate_pushes = 0, refused_pushes = 0, expired_leases = 0;
  uint64_t generated_tokens = 0, dropped_tokens = 0;
  double expected_drop_rate = 0;
  uint64_t admission_window_groups = 0;
  int64_t version = 0;
  std::string run;
};

class BufferClient {
 public:
  struct Options {
    std::string address;  // host:port
    std::string run;
    std::string server;                            // caller's name
    absl::Duration retry_for = absl::Seconds(60);  // how long an unreachable buffer is retried
    // Of a server: when its process began, microseconds since 1970. The first Lease or Release of a
    // newer one frees what the one before held, which otherwise lasts until the leases run out.
    uint64_t instance = 0;  // 0 = unknown
  };
  explicit BufferClient(Options options);
  ~BufferClient();

  absl::StatusOr<LeaseResult> Lease(uint32_t max_groups, absl::Duration wait);
  absl::StatusOr<RenewResult> Renew(const std::vector<LeaseName>& leases);
  absl::Status Release(const std::vector<LeaseName>& leases);

  // Called once for each Push, from a thread of the client, with no lock held. An error means: not
  // confirmed after retry_for.
  using PushCallback =
      std::function<void(absl::StatusOr<PushOutcome> outcome, const std::string& reason)>;
  // Sends without waiting for the confirmation; resends what was not confirmed when the stream
  // breaks. Blocks while 256 trajectories are unconfirmed.
  void Push(const Trajectory& trajectory, PushCallback done);
  // Waits until everything pushed so far is confirmed. DEADLINE_EXCEEDED says how many are not.
  absl::Status FlushPushes(absl::Duration timeout);

  // The batch of learner step `step`. DEADLINE_EXCEEDED carries what the buffer was waiting for.
  absl::StatusOr<Batch> NextBatch(uint64_t step, int64_t version, absl::Duration wait);
  absl::Status Commit(uint64_t step, const std::string& checkpoint);
  absl::StatusOr<RewindResult> Rewind(uint64_t step);
  absl::Status SetVersion(int64_t version, bool finished = false);
  absl::StatusOr<BufferStats> Stats();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_BUFFER_BUFFER_CLIENT_H_
