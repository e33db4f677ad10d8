// When a child that ended is started again, and when the run gives up on it. Plain policy: no
// clock, no processes. Not thread-safe.
#ifndef MILLRACE_CLI_RESTART_POLICY_H_
#define MILLRACE_CLI_RESTART_POLICY_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/backoff.h"
#include "common/config.h"

namespace millrace {

// How a process ended.
struct ChildExit {
  int code = 0;    // exit code, when signal is 0
  int signal = 0;  // the signal that killed it; 0 = it exited
  bool ok() const { return code == 0 && signal == 0; }
};
// "exited with code 1", "was killed by signal 9 (Killed)".
std::string DescribeExit(const ChildExit& exit);

class RestartPolicy {
 public:
  struct Options {
    Backoff::Options backoff;
    int64_t max_restarts = 10;  // within `window`
    absl::Duration window = absl::Minutes(5);
    // A child that has never announced itself and ends by itself fails for a reason that a restart
    // seldom cures (a missing model, say): so many tries in all.
    int max_failed_starts = 3;
  };
  RestartPolicy(Options options, uint64_t seed);
  static Options FromConfig(const RunConfig::Supervisor& config);

  struct Decision {
    bool restart = false;
    absl::Duration delay;  // before the restart
    std::string reason;    // why not, when restart is false
  };
  void OnStart(absl::Time now);
  void OnAnnounced();
  // The child ended, or was killed because it did not announce itself in time. Exit codes
  // kExitUsage and kExitGaveUp are never retried.
  Decision OnExit(const ChildExit& exit, absl::Time now);

  int64_t restarts() const { return restarts_; }  // granted so far

 private:
  const Options options_;
  Backoff backoff_;
  std::deque<absl::Time> recent_;  // restarts granted within the window
  absl::Time started_ = absl::InfinitePast();
  bool ever_announced_ = false;
  int failed_starts_ = 0;
  int64_t restarts_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_CLI_RESTART_POLICY_H_
