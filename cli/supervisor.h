// Runs one training run on this machine: starts the buffer, the learner and the rollout servers as
// child processes in that order, each once what it needs has announced itself, restarts those that
// die on their old ports, and ends when the learner has exited with 0. One thread; not thread-safe.
#ifndef MILLRACE_CLI_SUPERVISOR_H_
#define MILLRACE_CLI_SUPERVISOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/child_process.h"
#include "cli/restart_policy.h"
#include "common/config.h"

namespace millrace {

enum class RunEnd { kFinished, kStopped };

class Supervisor {
 public:
  struct Options {
    RunConfig config;         // already written to run_dir/config.toml
    std::string run_dir;      // exists, with logs/ and endpoints/
    std::string program_dir;  // folder of millrace-buffer, millrace-learner, millrace-rollout
    // Waits for a stop request or the time given; says whether to stop.
    std::function<bool(absl::Duration)> wait_for_stop;
    std::function<void()> tick;                           // several times a second; may be empty
    std::function<void(const std::string& line)> notice;  // something the user should know
    // Between SIGTERM and SIGKILL: the learner ends its step and writes a checkpoint.
    absl::Duration stop_grace = absl::Seconds(120);
    absl::Duration tell_after = absl::Seconds(5);  // who is still waited for
  };
  explicit Supervisor(Options options);

  // Blocks until the run is over. kStopped: a stop was asked for, everything ended in order, and
  // the same call resumes the run. An error names the child that could not be kept alive, how it
  // ended, and the last lines of its log. No child is left in any case.
  absl::StatusOr<RunEnd> Run();

  // Largest resident set seen of each child, bytes, by name.
  std::map<std::string, int64_t> peak_memory_bytes() const;

 private:
  enum class State { kWaiting, kStarting, kRunning, kEnded };
  struct Child {
    std::string name;
    std::string program;
    RestartPolicy policy;
    std::string fixed_address;  // from the config; empty = a free port
    State state = State::kWaiting;
    absl::Time start_at = absl::InfinitePast();  // kWaiting: not before
    absl::Time start_deadline;                   // kStarting
    std::optional<ChildProcess> process;
    int port = 0;
    int metrics_port = 0;
    std::string address;  // as announced; kept over restarts
    int64_t peak_bytes = 0;
  };

  void AddChild(const std::string& name, const std::string& program,
                const std::string& fixed_address);
  Child& buffer() { return children_[0]; }
  Child& learner() { return children_[1]; }
  bool CanStart(const Child& child) const;
  absl::Status Step(Child& child);
  absl::Status StartChild(Child& child);
  absl::Status PickPorts(Child& child);
  std::vector<std::string> Arguments(const Child& child) const;
  void LookForEndpoint(Child& child);
  absl::Status OnExit(Child& child, const ChildExit& exit, bool too_slow);
  void SampleMemory();
  static bool Runs(Child& child) {
    return child.process.has_value() && !child.process->Poll().has_value();
  }
  // SIGTERM, wait, SIGKILL. Rollout servers go on with their groups for as long as the learner
  // takes to end, then they are hurried.
  void Stop(const std::vector<Child*>& children);
  void StopAll();
  std::string EndpointPath(const Child& child) const;
  std::string LogPath(const Child& child) const;
  void Notice(const std::string& line) const;
  void Event(const std::string& event, const Child& child, const std::string& detail) const;

  const Options options_;
  std::vector<Child> children_;  // buffer, learner, rollout servers
  uint64_t next_port_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_CLI_SUPERVISOR_H_
