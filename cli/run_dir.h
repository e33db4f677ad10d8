// The run directory as the supervisor makes it. Thread-safe.
#ifndef MILLRACE_CLI_RUN_DIR_H_
#define MILLRACE_CLI_RUN_DIR_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/config.h"

namespace millrace {

// A run directory is worked in by one `millrace train` at a time: holds run.lock in it, which says
// who, until it is destroyed or the process ends in whatever way. Movable.
class RunLock {
 public:
  // ALREADY_EXISTS names the process that has it.
  static absl::StatusOr<RunLock> Take(const std::string& dir);
  RunLock() = default;
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&& other) noexcept;
  ~RunLock();

 private:
  int fd_ = -1;
};

struct RunDir {
  std::string path;
  RunConfig config;  // as written to config.toml: run.dir set, model.path absolute
  bool resumed = false;
  RunLock lock;
};

// Makes (or takes up again) the directory `dir`, or config.run.dir, or runs/<name>-<time of `now`>.
// A non-empty one is refused unless it holds the same run: the same config but for fields that may
// change between two lives of a run (steps, servers, threads, ...); the error names the field.
// Refused too while another process works in it; nothing in it is touched then.
// PERMISSION_DENIED and the like name a directory that cannot be written.
absl::StatusOr<RunDir> PrepareRunDir(RunConfig config, const std::string& dir, absl::Time now);

struct RunInit {
  bool resumed = false;              // there is a run in it that has come to something
  std::vector<std::string> changes;  // "run.steps was 16 and is now 99"
};
// Writes the config into `dir` for processes that are started one by one (containers, rented
// nodes). A run there that has come to something, a stored group or a checkpoint, goes on: it must
// be the same run, as with PrepareRunDir, or ALREADY_EXISTS names the fields and nothing is
// touched. May be called again and again, also while the processes run.
absl::StatusOr<RunInit> InitRunDir(RunConfig config, const std::string& dir);

// Adds "peak_memory_bytes" to summary.json.
absl::Status AddPeakMemory(const std::string& run_dir,
                           const std::map<std::string, int64_t>& peak_bytes);

// What follows a run or model folder given by the user: the newest checkpoint of a run, or the
// folder itself when it has a config.json. NOT_FOUND says what was looked for.
absl::StatusOr<std::string> FindModelDir(const std::string& run_or_model_dir);

// Folder of this program, where the others are too.
std::string OwnFolder();

}  // namespace millrace

#endif  // MILLRACE_CLI_RUN_DIR_H_
