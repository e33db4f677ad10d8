#include "cli/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

// Between fork and exec: only async-signal-safe calls.
[[noreturn]] void Exec(char* const* argv, int log_fd, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent died before the line above
  // A process group of its own: Ctrl-C reaches the supervisor only, which ends the children in
  // order.
  setpgid(0, 0);
  signal(SIGPIPE, SIG_DFL);
  dup2(log_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  execv(argv[0], argv);
  static const char kMessage[] = "cannot execute the program\n";
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  _exit(127);
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const Spec& spec) {
  if (access(spec.program.c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("program ", spec.program, ": ", strerror(errno)));
  }
  const int log_fd = open(spec.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log_fd < 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("log file ", spec.log_path, ": ", strerror(errno)));
  }
  std::vector<char*> argv;
  argv.push_back(const_cast<char*>(spec.program.c_str()));
  for (const std::string& arg : spec.args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Exec(argv.data(), log_fd, parent);
  const int error = errno;
  close(log_fd);
  if (pid < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("starting ", spec.program, ": ", strerror(error)));
  }
  return ChildProcess(pid);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), exit_(std::move(other.exit_)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(exit_, other.exit_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (pid_ <= 0 || exit_.has_value()) return;
  kill(pid_, SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

std::optional<ChildExit> ChildProcess::Poll() {
  if (exit_.has_value()) return exit_;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  ChildExit exit;
  if (WIFSIGNALED(status)) {
    exit.signal = WTERMSIG(status);
  } else {
    exit.code = WEXITSTATUS(status);
  }
  exit_ = exit;
  return exit_;
}

void ChildProcess::Signal(int signal) {
  if (pid_ > 0 && !Poll().has_value()) kill(pid_, signal);
}

std::string LastLines(const std::string& path, int lines) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  constexpr std::streamoff kTail = 1 << 16;
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kTail));
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  while (!text.empty() && text.back() == '\n') text.pop_back();
  size_t begin = text.size();
  for (int i = 0; i < lines && begin != std::string::npos && begin > 0; ++i) {
    begin = text.rfind('\n', begin - 1);
  }
  return begin == std::string::npos || begin == 0 ? text : text.substr(begin + 1);
}

}  // namespace millrace
