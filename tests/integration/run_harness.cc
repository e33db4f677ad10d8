#include "tests/integration/run_harness.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace millrace::testing {
namespace {

namespace fs = std::filesystem;

// The smallest run that still has everything: two servers, eight groups of four, random weights.
constexpr char kConfig[] = R"(
[run]
name = "small"
steps = 12
[model]
architecture = "qwen3"
hidden_size = 32
layers = 2
heads = 2
kv_heads = 1
head_dim = 16
intermediate_size = 64
max_position = 128
[task]
name = "coin_sums"
[buffer]
groups_per_step = 4
version_lead = 1
lease_seconds = 5
[rollout]
servers = 2
group_size = 4
max_prompt_tokens = 64
max_new_tokens = 16
max_batch = 32
kv_tokens = 8192
[learner]
lr = 1e-4
checkpoint_every = 2
[eval]
problems = 8
samples = 1
greedy = false
[supervisor]
backoff_seconds = 0.1
)";

std::string Tail(const std::string& text, size_t bytes = 3000) {
  return text.size() <= bytes ? text : text.substr(text.size() - bytes);
}

}  // namespace

ChildProcess::~ChildProcess() {
  if (pid_ > 0 && exit_code_ < 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

void ChildProcess::Start(const std::vector<std::string>& argv, const std::string& output_file) {
  std::vector<char*> args;
  for (const std::string& a : argv) args.push_back(const_cast<char*>(a.c_str()));
  args.push_back(nullptr);
  exit_code_ = -1;
  pid_ = fork();
  ASSERT_GE(pid_, 0) << "fork failed";
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int out = open(output_file.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0644);
    const int in = open("/dev/null", O_RDONLY);
    dup2(in, 0);
    dup2(out, 1);
    dup2(out, 2);
    execv(args[0], args.data());
    _exit(127);
  }
}

absl::StatusOr<int> ChildProcess::Wait(absl::Duration timeout) {
  if (exit_code_ >= 0) return exit_code_;
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  pollfd p{fd, POLLIN, 0};
  const int ready = poll(&p, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  close(fd);
  if (ready != 1) {
    return absl::DeadlineExceededError(
        absl::StrCat("process ", pid_, " still runs after ", absl::FormatDuration(timeout)));
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return exit_code_;
}

CommandResult RunCommand(const std::vector<std::string>& argv, absl::Duration timeout) {
  const std::string folder = MakeTempFolder();
  CommandResult result;
  {
    ChildProcess child;
    child.Start(argv, folder + "/output");
    if (absl::StatusOr<int> code = child.Wait(timeout); code.ok()) result.exit_code = *code;
  }
  result.output = ReadWhole(folder + "/output");
  fs::remove_all(folder);
  return result;
}

std::string MakeTempFolder() {
  std::string pattern = (fs::temp_directory_path() / "millrace-test-XXXXXX").string();
  return mkdtemp(pattern.data()) == nullptr ? "" : pattern;
}

std::string ReadWhole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string Program(const std::string& name) { return absl::StrCat(MILLRACE_BIN_DIR, "/", name); }

TrainRun::TrainRun(std::vector<std::string> extra, std::string config)
    : config_(std::move(config)), overrides_(std::move(extra)) {
  folder_ = MakeTempFolder();
  run_dir_ = folder_ + "/run";
  if (!config_.empty()) return;
  config_ = folder_ + "/small.toml";
  std::ofstream(config_) << kConfig;
}

TrainRun::~TrainRun() {
  if (::testing::Test::HasFailure()) {
    std::cerr << "kept for a look: " << folder_ << "\n" << Tail(Output()) << "\n";
    return;
  }
  process_.~ChildProcess();
  new (&process_) ChildProcess();
  fs::remove_all(folder_);
}

void TrainRun::Start() {
  std::vector<std::string> argv = {Program("millrace"), "train", config_, "--run-dir", run_dir_};
  for (const std::string& o : overrides_) {
    argv.push_back("--set");
    argv.push_back(o);
  }
  process_.Start(argv, folder_ + "/output");
}

absl::Status TrainRun::WaitFor(const std::string& what, const std::function<bool()>& condition,
                               absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  const int fd = inotify_init1(IN_CLOEXEC);
  absl::Status status;
  while (!condition()) {
    for (const std::string& d : {folder_, run_dir_, run_dir_ + "/endpoints"}) {
      inotify_add_watch(fd, d.c_str(), IN_MODIFY | IN_CREATE | IN_MOVED_TO);
    }
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) {
      status = absl::DeadlineExceededError(absl::StrCat("waited ", absl::FormatDuration(timeout),
                                                        " for ", what, "; output ends:\n",
                                                        Tail(Output())));
      break;
    }
    // A change between the condition and the watch is seen at the next change or after one second.
    pollfd p{fd, POLLIN, 0};
    if (poll(&p, 1,
             static_cast<int>(std::min<int64_t>(1000, absl::ToInt64Milliseconds(left) + 1))) > 0) {
      char drain[4096];
      if (read(fd, drain, sizeof drain) < 0) break;
    }
  }
  close(fd);
  return status;
}

absl::Status TrainRun::WaitForStep(int64_t step, absl::Duration timeout) {
  return WaitFor(
      absl::StrCat("step ", step),
      [&] {
        const auto rows = Metrics();
        return !rows.empty() && rows.back()["step"].get<int64_t>() >= step;
      },
      timeout);
}

absl::Status TrainRun::Stop() {
  kill(process_.pid(), SIGINT);
  return process_.Wait(absl::Seconds(60)).status();
}

absl::StatusOr<int> TrainRun::WaitForEnd(absl::Duration timeout) { return process_.Wait(timeout); }

absl::StatusOr<nlohmann::json> TrainRun::Endpoint(const std::string& name) const {
  auto parsed = nlohmann::json::parse(
      ReadWhole(absl::StrCat(run_dir_, "/endpoints/", name, ".json")), nullptr, false);
  if (parsed.is_discarded()) return absl::NotFoundError(absl::StrCat("no endpoint of ", name));
  return parsed;
}

absl::Status TrainRun::Signal(const std::string& name, int signal) {
  absl::StatusOr<nlohmann::json> endpoint = Endpoint(name);
  if (!endpoint.ok()) return endpoint.status();
  if (kill((*endpoint)["pid"].get<pid_t>(), signal) != 0) {
    return absl::InternalError(absl::StrCat("could not signal ", name));
  }
  return absl::OkStatus();
}

std::vector<nlohmann::json> TrainRun::Metrics() const {
  std::vector<nlohmann::json> rows;
  std::istringstream lines(ReadWhole(run_dir_ + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    auto row = nlohmann::json::parse(line, nullptr, false);
    if (!row.is_discarded() && row["phase"] == "grpo") rows.push_back(std::move(row));
  }
  return rows;
}

nlohmann::json TrainRun::Summary() const {
  return nlohmann::json::parse(ReadWhole(run_dir_ + "/summary.json"), nullptr, false);
}

std::string TrainRun::Output() const { return ReadWhole(folder_ + "/output"); }

}  // namespace millrace::testing
