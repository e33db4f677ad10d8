// One child program: started with its output in a log file, killed when this process dies, reaped
// without blocking. Not thread-safe; Start() must be called from the main thread, since the kernel
// ties the death signal to the thread that forked.
#ifndef MILLRACE_CLI_CHILD_PROCESS_H_
#define MILLRACE_CLI_CHILD_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/restart_policy.h"

namespace millrace {

class ChildProcess {
 public:
  struct Spec {
    std::string program;  // path
    std::vector<std::string> args;
    std::string log_path;  // stdout and stderr are appended; the folder exists
  };
  // NOT_FOUND names a program that is not there or cannot be executed.
  static absl::StatusOr<ChildProcess> Start(const Spec& spec);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();  // SIGKILLs and reaps what still runs

  pid_t pid() const { return pid_; }
  // How it ended; nullopt while it runs.
  std::optional<ChildExit> Poll();
  void Signal(int signal);  // nothing once it has ended

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}
  pid_t pid_ = -1;
  std::optional<ChildExit> exit_;
};

// The last `lines` lines of a text file, for error messages; empty when it cannot be read.
std::string LastLines(const std::string& path, int lines);

}  // namespace millrace

#endif  // MILLRACE_CLI_CHILD_PROCESS_H_
