// Reads a growing file of JSON lines (metrics.jsonl and its like). Not thread-safe.
#ifndef MILLRACE_CLI_JSONL_FOLLOWER_H_
#define MILLRACE_CLI_JSONL_FOLLOWER_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace millrace {

class JsonlFollower {
 public:
  explicit JsonlFollower(std::string path) : path_(std::move(path)) {}
  // Calls `on_line` for every whole line that is new. `history` is true for lines that were there
  // at the first poll, or in a file that was cut or replaced since the last one (a learner that
  // resumed): known news, not new ones. A file that is not there has no lines; lines that are no
  // JSON objects are left out.
  void Poll(const std::function<void(const nlohmann::json& line, bool history)>& on_line);

 private:
  const std::string path_;
  bool first_ = true;
  ino_t inode_ = 0;
  int64_t offset_ = 0;   // bytes read
  std::string partial_;  // a line whose end has not come yet
};

}  // namespace millrace

#endif  // MILLRACE_CLI_JSONL_FOLLOWER_H_
