// Starts `millrace train` with a very small model as a real process tree, and lets a test watch its
// files, kill its children and audit its store. One TrainRun a test; its folder is removed at the
// end unless the test failed.
#ifndef MILLRACE_TESTS_INTEGRATION_RUN_HARNESS_H_
#define MILLRACE_TESTS_INTEGRATION_RUN_HARNESS_H_

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace millrace::testing {

// A child process whose output goes to a file.
class ChildProcess {
 public:
  ChildProcess() = default;
  ~ChildProcess();  // SIGKILL when it still runs
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  void Start(const std::vector<std::string>& argv, const std::string& output_file);
  // Exit code (128 + signal when killed), or DEADLINE_EXCEEDED.
  absl::StatusOr<int> Wait(absl::Duration timeout);
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int exit_code_ = -1;
};

// Output and exit code of a command that ends by itself within `timeout`.
struct CommandResult {
  int exit_code = -1;
  std::string output;
};
CommandResult RunCommand(const std::vector<std::string>& argv,
                         absl::Duration timeout = absl::Seconds(60));

// A fresh folder below the system's temporary one.
std::string MakeTempFolder();
std::string ReadWhole(const std::string& path);
std::string Program(const std::string& name);

// What the store of a finished run says.
struct StoreAudit {
  std::set<std::string> keys;  // group/index/attempt of every stored trajectory
  std::map<std::string, int64_t> groups_by_state;
  std::map<uint64_t, int64_t> committed_step;  // group id -> learner step
  std::map<std::string, int64_t> trajectories_by_server;
};

class TrainRun {
 public:
  // `extra` are further --set overrides; `config` is a TOML file, empty = the smallest run.
  explicit TrainRun(std::vector<std::string> extra = {}, std::string config = "");
  ~TrainRun();

  void Start();
  // Waits until metrics.jsonl has a grpo line of step >= `step`. The error says which step was last
  // seen and shows the output's end.
  absl::Status WaitForStep(int64_t step, absl::Duration timeout = absl::Seconds(90));
  // Waits for any condition on the run's files, checked whenever something in the run folder
  // changes.
  absl::Status WaitFor(const std::string& what, const std::function<bool()>& condition,
                       absl::Duration timeout = absl::Seconds(90));
  // SIGINT to the supervisor, as Ctrl-C does, and its end.
  absl::Status Stop();
  absl::StatusOr<int> WaitForEnd(absl::Duration timeout = absl::Seconds(120));
  // Parsed endpoints/<name>.json; NOT_FOUND when there is none.
  absl::StatusOr<nlohmann::json> Endpoint(const std::string& name) const;
  // To the child `name` (by its endpoint file).
  absl::Status Signal(const std::string& name, int signal);
  absl::Status Kill(const std::string& name) { return Signal(name, SIGKILL); }
  std::vector<nlohmann::json> Metrics() const;  // parsed metrics.jsonl, grpo lines
  nlohmann::json Summary() const;
  StoreAudit Audit() const;
  std::string Output() const;
  const std::string& dir() const { return run_dir_; }

 private:
  std::string folder_, run_dir_, config_;
  std::vector<std::string> overrides_;
  ChildProcess process_;
};

// Fails the test unless: steps are 1..steps without gap, no group was trained in two steps, every
// trained group is committed at its step, and every key of `before` is still stored.
void ExpectExactlyOnce(const TrainRun& run, int64_t steps,
                       const std::set<std::string>& before = {});

}  // namespace millrace::testing

#endif  // MILLRACE_TESTS_INTEGRATION_RUN_HARNESS_H_
