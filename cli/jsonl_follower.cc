#include "cli/jsonl_follower.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

namespace millrace {

void JsonlFollower::Poll(
    const std::function<void(const nlohmann::json& line, bool history)>& on_line) {
  bool history = std::exchange(first_, false);
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  struct stat info {};
  if (fstat(fd, &info) == 0 && inode_ != 0 && (info.st_ino != inode_ || info.st_size < offset_)) {
    offset_ = 0;
    partial_.clear();
    history = true;
  }
  inode_ = info.st_ino;
  char chunk[1 << 14];
  ssize_t n = 0;
  while ((n = pread(fd, chunk, sizeof(chunk), offset_)) > 0) {
    offset_ += n;
    partial_.append(chunk, static_cast<size_t>(n));
  }
  close(fd);
  size_t begin = 0;
  for (size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const auto json = nlohmann::json::parse(partial_.begin() + static_cast<int64_t>(begin),
                                            partial_.begin() + static_cast<int64_t>(end), nullptr,
                                            /*allow_exceptions=*/false);
    if (json.is_object()) on_line(json, history);
  }
  partial_.erase(0, begin);
}

}  // namespace millrace
