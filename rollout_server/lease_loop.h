// Keeps the engine fed: leases groups from the buffer, waits for the version they ask for, submits
// them, verifies each sample as it ends and pushes its trajectory. Renews leases before they run
// out; a lost lease cancels its request.
//
// Threads: Run() on the caller's thread, `verify_threads` of its own. Public calls are thread-safe.
#ifndef MILLRACE_ROLLOUT_SERVER_LEASE_LOOP_H_
#define MILLRACE_ROLLOUT_SERVER_LEASE_LOOP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "environments/task.h"
#include "model/tokenizer.h"
#include "rollout_server/ports.h"

namespace millrace {

class LeaseLoop {
 public:
  struct Options {
    std::string run;
    std::string server;  // this process's name
    SamplingParams sampling;
    int32_t max_new_tokens = 48;
    int64_t max_prompt_tokens = 512;  // longer prompts make FAILED trajectories
    std::vector<int32_t> stop_ids;
    // New groups are leased while fewer samples than this are unfinished, so that the engine's
    // batch stays full and at most one group waits behind it.
    int64_t max_unfinished = 64;
    int64_t group_size = 8;  // samples that a new lease is expected to add
    int verify_threads = 1;
    absl::Duration lease_wait = absl::Milliseconds(250);  // of one Lease call
    // A lease whose version is not active after this long is given back.
    absl::Duration version_wait = absl::Seconds(60);
    // A buffer that stays unreachable for this long ends Run() with an error.
    absl::Duration buffer_retry = absl::Seconds(600);
    // Length of a lease (buffer.lease_seconds). The buffer's deadlines are by its own clock; one
    // that is ahead of ours must not put a renewal off until the lease has run out there.
    absl::Duration lease_length = absl::InfiniteDuration();
    // So many groups in a row that cannot be sampled (their prompts are too long, say), or samples
    // in a row that the engine gives up, end Run() with an error: more would only fill the store.
    int64_t max_failed_groups = 64;
    int64_t max_cancelled_samples = 1024;
  };
  // Not owned; all must outlive the loop, and the engine's and the buffer's callbacks may still
  // come after it is gone.
  struct Parts {
    LeaseBuffer* buffer = nullptr;
    SampleEngine* engine = nullptr;
    VersionGate* versions = nullptr;
    const Task* task = nullptr;
    const Tokenizer* tokenizer = nullptr;
    Metrics* metrics = nullptr;
    Clock* clock = Clock::Real();
  };
  enum class End { kStopped, kFinished };

  LeaseLoop(Options options, Parts parts);
  ~LeaseLoop();  // cancels and releases what is left, joins

  // Works until `stop` says so (asked at least every 250 ms: an error from it ends the run with
  // that error, true ends it with kStopped) or the buffer says the run needs no more groups. Groups
  // that are still running when it returns are kept for Drain(). Call once.
  absl::StatusOr<End> Run(const std::function<absl::StatusOr<bool>()>& stop);

  // Leases no more; waits up to `timeout` for the held groups to be pushed, then cancels the others
  // and releases their leases. Returns how many those were. Waits no longer once `enough` says so
  // (asked every 100 ms; may be empty).
  uint32_t Drain(absl::Duration timeout, const std::function<bool()>& enough = nullptr);
  bool draining() const;

  // OK while the buffer answers, or is out of reach for less than a minute.
  absl::Status health() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace millrace

#endif  // MILLRACE_ROLLOUT_SERVER_LEASE_LOOP_H_
