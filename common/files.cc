#include "common/files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

absl::Status ErrnoStatus(int error, absl::string_view doing, absl::string_view path) {
  const std::string message = absl::StrCat(doing, " ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(message);
    case EEXIST:
      return absl::AlreadyExistsError(message);
    default:
      return absl::UnknownError(message);
  }
}

// Closes on destruction; Close() reports what close() said.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int Close() { return ::close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

absl::Status WriteAll(int fd, absl::string_view piece, const std::string& path) {
  while (!piece.empty()) {
    const ssize_t n = ::write(fd, piece.data(), std::min<size_t>(piece.size(), 1 << 30));
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, "writing", path);
    }
    piece.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status SyncDirectoryOf(const std::string& path) {
  std::string folder = fs::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return ErrnoStatus(errno, "opening folder", folder);
  // Some file systems refuse fsync on folders; the rename has happened all the same.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) return ErrnoStatus(errno, "syncing", folder);
  return absl::OkStatus();
}

absl::Status WritePart(const std::string& part,
                       const std::function<absl::Status(const FilePieceSink&)>& write) {
  Fd fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (fd.get() < 0) return ErrnoStatus(errno, "creating", part);
  MR_RETURN_IF_ERROR(
      write([&](absl::string_view piece) { return WriteAll(fd.get(), piece, part); }));
  if (::fsync(fd.get()) != 0) return ErrnoStatus(errno, "syncing", part);
  if (fd.Close() != 0) return ErrnoStatus(errno, "closing", part);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return ErrnoStatus(errno, "opening", path);
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, "reading", path);
  std::string contents;
  if (info.st_size > 0) contents.reserve(static_cast<size_t>(info.st_size));
  // Read to the end, not to st_size: files of /proc report 0, logs grow meanwhile.
  char chunk[1 << 16];
  while (true) {
    const ssize_t n = ::read(fd.get(), chunk, sizeof(chunk));
    if (n == 0) return contents;
    if (n < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, "reading", path);
    }
    contents.append(chunk, static_cast<size_t>(n));
  }
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view contents) {
  return WriteFileAtomically(path, absl::Span<const absl::string_view>(&contents, 1));
}

absl::Status WriteFileAtomically(const std::string& path,
                                 absl::Span<const absl::string_view> pieces) {
  return WriteFileInPieces(path, [&](const FilePieceSink& sink) -> absl::Status {
    for (absl::string_view piece : pieces) MR_RETURN_IF_ERROR(sink(piece));
    return absl::OkStatus();
  });
}

absl::Status WriteFileInPieces(const std::string& path,
                               const std::function<absl::Status(const FilePieceSink&)>& write) {
  const std::string part = path + ".part";
  absl::Status status = WritePart(part, write);
  if (status.ok() && ::rename(part.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus(errno, "renaming to", path);
  }
  if (!status.ok()) {
    ::unlink(part.c_str());
    return status;
  }
  return SyncDirectoryOf(path);
}

absl::Status MakeDirectories(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_directory(path, error)) {
    return absl::AlreadyExistsError(absl::StrCat(path, " exists and is not a folder"));
  }
  fs::create_directories(path, error);
  if (error) return ErrnoStatus(error.value(), "creating folder", path);
  return absl::OkStatus();
}

absl::Status CheckWritableDirectory(const std::string& path) {
  MR_RETURN_IF_ERROR(MakeDirectories(path));
  // access() says yes to root on a read-only file system; making a file is the only sure answer.
  std::string probe = JoinPath(path, ".write_probe_XXXXXX");
  Fd fd(::mkstemp(probe.data()));
  if (fd.get() < 0) return ErrnoStatus(errno, "creating a file in folder", path);
  ::unlink(probe.c_str());
  return absl::OkStatus();
}

bool FileExists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path) {
  std::error_code error;
  std::vector<std::string> names;
  fs::directory_iterator it(path, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return ErrnoStatus(error.value(), "listing folder", path);
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status RemoveRecursively(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return ErrnoStatus(error.value(), "removing", path);
  return absl::OkStatus();
}

std::string JoinPath(absl::string_view a, absl::string_view b) {
  if (a.empty() || (!b.empty() && b.front() == '/')) return std::string(b);
  if (a.back() == '/') return absl::StrCat(a, b);
  return absl::StrCat(a, "/", b);
}

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return ErrnoStatus(errno, "opening", path);
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, "reading", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("mapping ", path, ": not a regular file"));
  }
  MappedFile file;
  if (info.st_size == 0) return file;  // mmap refuses a length of 0
  void* data =
      ::mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, "mapping", path);
  file.data_ = static_cast<const std::byte*>(data);
  file.size_ = static_cast<size_t>(info.st_size);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::Release(absl::Span<const std::byte> range) const {
  if (range.empty() || data_ == nullptr) return;
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(range.data()) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(range.data()) + range.size();
  // Advice: pages that stay are no error.
  ::madvise(reinterpret_cast<void*>(begin), end - begin,  // NOLINT(performance-no-int-to-ptr)
            MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace millrace
