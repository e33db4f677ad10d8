// File helpers whose writes are whole or absent. Errors name the path and errno's text.
// Thread-safe.
#ifndef MILLRACE_COMMON_FILES_H_
#define MILLRACE_COMMON_FILES_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace millrace {

absl::StatusOr<std::string> ReadFile(const std::string& path);
// Writes path + ".part", syncs, renames, syncs the folder.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view contents);
// As above with several pieces written one after another (no copy into one string).
absl::Status WriteFileAtomically(const std::string& path,
                                 absl::Span<const absl::string_view> pieces);
// As above with pieces that are made one after another, so that none has to be kept: `write` calls
// its argument with each, and what it returns is returned.
using FilePieceSink = std::function<absl::Status(absl::string_view piece)>;
absl::Status WriteFileInPieces(const std::string& path,
                               const std::function<absl::Status(const FilePieceSink&)>& write);
// mkdir -p.
absl::Status MakeDirectories(const std::string& path);
// OK when `path` is, or can be made, a folder that this process can create files in.
absl::Status CheckWritableDirectory(const std::string& path);
bool FileExists(const std::string& path);
absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path);  // names, sorted
absl::Status RemoveRecursively(const std::string& path);
std::string JoinPath(absl::string_view a, absl::string_view b);

// A read-only memory map of a whole file; unmapped when destroyed. Movable.
class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();
  absl::Span<const std::byte> bytes() const { return {data_, size_}; }
  // Takes the pages of `range`, a part of bytes(), out of this process's resident memory; they are
  // read again when they are looked at again. For those who walk through a large file once.
  void Release(absl::Span<const std::byte> range) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_COMMON_FILES_H_
