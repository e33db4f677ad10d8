#include "cli/run_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/progress_format.h"
#include "common/config_schema.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

constexpr char kLockFile[] = "run.lock";

// What may differ between two lives of a run: how long, with how many hands, how patiently.
bool MayChange(const ConfigField& field) {
  static const auto* const kFields = new std::set<std::string>{"run.dir",
                                                               "run.steps",
                                                               "rollout.servers",
                                                               "rollout.threads",
                                                               "rollout.devices",
                                                               "learner.threads",
                                                               "buffer.address",
                                                               "buffer.keep_steps",
                                                               "learner.checkpoint_every",
                                                               "learner.keep_checkpoints",
                                                               "weight_sync.address",
                                                               "rollout.max_batch",
                                                               "rollout.kv_tokens"};
  return field.section == "supervisor" || field.section == "eval" ||
         kFields->count(field.full_name()) > 0;
}

// "learner.lr was 1e-05 and is now 0.5" for each field that differs and may change, or may not.
std::vector<std::string> Differences(const RunConfig& old, const RunConfig& config,
                                     bool may_change) {
  std::vector<std::string> differences;
  for (const ConfigField& field : ConfigSchema()) {
    const std::string before = ConfigValueText(field, old);
    const std::string now = ConfigValueText(field, config);
    if (before != now && MayChange(field) == may_change) {
      differences.push_back(absl::StrCat(field.full_name(), " was ", before, " and is now ", now));
    }
  }
  return differences;
}

absl::Status CheckSameRun(const std::string& dir, const RunConfig& old, const RunConfig& config) {
  const std::vector<std::string> differences = Differences(old, config, /*may_change=*/false);
  if (differences.empty()) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("run directory ", dir, " holds another run (",
                                               absl::StrJoin(differences, "; "),
                                               "); choose another with --run-dir"));
}

absl::Status CheckSameRun(const std::string& dir, const RunConfig& config) {
  const std::string path = JoinPath(dir, "config.toml");
  if (!FileExists(path)) {
    return absl::AlreadyExistsError(absl::StrCat(
        "run directory ", dir, " is not empty and holds no run; choose another with --run-dir"));
  }
  MR_ASSIGN_OR_RETURN(const RunConfig old, LoadConfig(path));
  return CheckSameRun(dir, old, config);
}

absl::Status CheckNotFinished(const std::string& dir, const RunConfig& config) {
  const auto text = ReadFile(JoinPath(dir, "summary.json"));
  if (!text.ok()) return absl::OkStatus();
  const auto summary = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!summary.is_object() || JsonInteger(summary, "steps") < config.run.steps) {
    return absl::OkStatus();
  }
  return absl::AlreadyExistsError(absl::StrCat(
      "the run in ", dir, " is finished (", config.run.steps,
      " steps); raise run.steps to go on with it, or choose another directory with --run-dir"));
}

std::string Absolute(const std::string& path) {
  std::error_code error;
  const auto absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

// Children and later commands may run in another folder.
void MakePathsAbsolute(const std::string& dir, RunConfig* config) {
  config->run.dir = Absolute(dir);
  if (!config->model.path.empty()) config->model.path = Absolute(config->model.path);
  for (std::string& file : config->data.files) file = Absolute(file);
  for (std::string& file : config->data.eval_files) file = Absolute(file);
  for (std::string& part : config->task.parts) {
    if (absl::StrContains(part, ".toml")) part = Absolute(part);
  }
}

}  // namespace

absl::StatusOr<RunLock> RunLock::Take(const std::string& dir) {
  const std::string path = JoinPath(dir, kLockFile);
  RunLock lock;
  // Children do not inherit it: one that outlives its supervisor for a moment must not hold it.
  lock.fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock.fd_ < 0) {
    return absl::PermissionDeniedError(absl::StrCat("opening ", path, ": ", std::strerror(errno)));
  }
  if (flock(lock.fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return absl::UnavailableError(absl::StrCat("locking ", path, ": ", std::strerror(errno)));
    }
    char pid[32] = {};
    const bool known = pread(lock.fd_, pid, sizeof(pid) - 1, 0) > 0;
    return absl::AlreadyExistsError(absl::StrCat(
        "run directory ", dir, " is in use by another millrace (process ", known ? pid : "unknown",
        "); wait for it, stop it, or choose another directory with --run-dir"));
  }
  // Only for that message: a full disk is somebody else's error to report.
  const std::string pid = std::to_string(getpid());
  if (ftruncate(lock.fd_, 0) == 0) {
    [[maybe_unused]] const ssize_t n = pwrite(lock.fd_, pid.data(), pid.size(), 0);
  }
  return lock;
}

RunLock::RunLock(RunLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

RunLock& RunLock::operator=(RunLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

RunLock::~RunLock() {
  if (fd_ >= 0) close(fd_);  // lets go of the lock
}

absl::StatusOr<RunDir> PrepareRunDir(RunConfig config, const std::string& dir, absl::Time now) {
  RunDir run;
  run.path = dir.empty() ? config.run.dir : dir;
  if (run.path.empty()) {
    run.path = absl::StrCat("runs/", config.run.name, "-",
                            absl::FormatTime("%Y%m%d-%H%M%S", now, absl::LocalTimeZone()));
  }
  MakePathsAbsolute(run.path, &config);
  if (FileExists(run.path)) {
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(run.path));
    if (!names.empty() && names != std::vector<std::string>{kLockFile}) {
      MR_RETURN_IF_ERROR(CheckSameRun(run.path, config));
      MR_RETURN_IF_ERROR(CheckNotFinished(run.path, config));
      run.resumed = true;
    }
  }
  if (const absl::Status status = CheckWritableDirectory(run.path); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("run directory ", run.path,
                                                    " cannot be used: ", status.message()));
  }
  MR_ASSIGN_OR_RETURN(run.lock, RunLock::Take(run.path));
  MR_RETURN_IF_ERROR(WriteFileAtomically(JoinPath(run.path, "config.toml"), PrintConfig(config)));
  MR_RETURN_IF_ERROR(MakeDirectories(JoinPath(run.path, "logs")));
  // A summary says that a run is over; this one goes on.
  MR_RETURN_IF_ERROR(RemoveRecursively(JoinPath(run.path, "summary.json")));
  MR_RETURN_IF_ERROR(RemoveRecursively(JoinPath(run.path, "endpoints")));
  MR_RETURN_IF_ERROR(MakeDirectories(JoinPath(run.path, "endpoints")));
  run.config = std::move(config);
  return run;
}

absl::StatusOr<RunInit> InitRunDir(RunConfig config, const std::string& dir) {
  RunInit init;
  MakePathsAbsolute(dir, &config);
  MR_RETURN_IF_ERROR(CheckWritableDirectory(dir));
  MR_ASSIGN_OR_RETURN(const RunLock lock, RunLock::Take(dir));
  const std::string path = JoinPath(dir, "config.toml");
  init.resumed =
      FileExists(JoinPath(dir, "buffer.sqlite")) || FileExists(JoinPath(dir, "checkpoints/latest"));
  if (init.resumed) {
    MR_ASSIGN_OR_RETURN(RunConfig old, LoadConfig(path));
    MakePathsAbsolute(dir, &old);
    // Whoever did not look at the problems has nothing to say about them.
    if (config.task.digest.empty()) config.task.digest = old.task.digest;
    MR_RETURN_IF_ERROR(CheckSameRun(dir, old, config));
    init.changes = Differences(old, config, /*may_change=*/true);
    // A summary says that a run is over; with more steps it goes on.
    if (CheckNotFinished(dir, config).ok()) {
      MR_RETURN_IF_ERROR(RemoveRecursively(JoinPath(dir, "summary.json")));
    }
  }
  MR_RETURN_IF_ERROR(WriteFileAtomically(path, PrintConfig(config)));
  return init;
}

absl::Status AddPeakMemory(const std::string& run_dir,
                           const std::map<std::string, int64_t>& peak_bytes) {
  const std::string path = JoinPath(run_dir, "summary.json");
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  auto json = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::DataLossError(absl::StrCat(path, " does not hold a JSON object"));
  }
  for (const auto& [name, bytes] : peak_bytes) json["peak_memory_bytes"][name] = bytes;
  return WriteFileAtomically(path, json.dump(2) + "\n");
}

absl::StatusOr<std::string> FindModelDir(const std::string& run_or_model_dir) {
  if (!FileExists(run_or_model_dir)) {
    return absl::NotFoundError(
        absl::StrCat("there is no folder ", run_or_model_dir.empty() ? "\"\"" : run_or_model_dir));
  }
  std::error_code error;
  if (std::filesystem::is_regular_file(run_or_model_dir, error)) {
    return absl::InvalidArgumentError(absl::StrCat(
        run_or_model_dir, " is a file, not a model folder",
        absl::EndsWith(run_or_model_dir, ".gguf")
            ? absl::StrCat("; make one of it with `millrace import ", run_or_model_dir, " DIR`")
            : ""));
  }
  const std::string checkpoints = JoinPath(run_or_model_dir, "checkpoints");
  if (const auto latest = ReadFile(JoinPath(checkpoints, "latest")); latest.ok()) {
    const std::string dir = JoinPath(checkpoints, std::string(absl::StripAsciiWhitespace(*latest)));
    if (FileExists(JoinPath(dir, "config.json"))) return dir;
    return absl::NotFoundError(absl::StrCat(JoinPath(checkpoints, "latest"), " names ", dir,
                                            ", which has no config.json"));
  }
  // A PEFT adapter names its base model.
  for (const char* file : {"config.json", "adapter_config.json"}) {
    if (FileExists(JoinPath(run_or_model_dir, file))) return run_or_model_dir;
  }
  if (FileExists(checkpoints) || FileExists(JoinPath(run_or_model_dir, "config.toml"))) {
    return absl::NotFoundError(
        absl::StrCat("the run in ", run_or_model_dir, " has no checkpoint yet"));
  }
  return absl::NotFoundError(absl::StrCat(run_or_model_dir,
                                          " is neither a run (checkpoints/latest) nor a model "
                                          "folder (config.json)"));
}

std::string OwnFolder() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : self.parent_path().string();
}

}  // namespace millrace
