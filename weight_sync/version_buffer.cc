#include "weight_sync/version_buffer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace millrace {

absl::StatusOr<std::unique_ptr<VersionBuffer>> VersionBuffer::Create(uint64_t size) {
  int fd = memfd_create("millrace-version", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("memfd_create: ", strerror(errno)));
  }
  void* data = MAP_FAILED;
  // The size is sealed, so that nobody who maps the pages can meet a shrunken file.
  if (ftruncate(fd, static_cast<off_t>(size)) == 0 &&
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0) {
    data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (data == MAP_FAILED) {
    int error = errno;
    close(fd);
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", size, " bytes for a version: ", strerror(error)));
  }
  madvise(data, size, MADV_HUGEPAGE);
  return std::unique_ptr<VersionBuffer>(
      new VersionBuffer(fd, static_cast<std::byte*>(data), size, true));
}

absl::StatusOr<std::unique_ptr<VersionBuffer>> VersionBuffer::MapReadOnly(int fd, uint64_t size) {
  struct stat info {};
  int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &info) != 0 || static_cast<uint64_t>(info.st_size) < size || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat("the shared file has ", info.st_size, " bytes (",
                                                   size, " needed) and seals ", seals));
  }
  void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    int error = errno;
    close(fd);
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map ", size, " bytes of a shared version: ", strerror(error)));
  }
  return std::unique_ptr<VersionBuffer>(
      new VersionBuffer(fd, static_cast<std::byte*>(data), size, false));
}

VersionBuffer::~VersionBuffer() {
  munmap(data_, size_);
  close(fd_);
}

VersionBufferPool::VersionBufferPool(size_t keep) : shared_(std::make_shared<Shared>()) {
  absl::MutexLock lock(&shared_->mu);
  shared_->keep = keep;
}

absl::StatusOr<std::shared_ptr<VersionBuffer>> VersionBufferPool::Take(uint64_t size) {
  std::unique_ptr<VersionBuffer> buffer;
  std::vector<std::unique_ptr<VersionBuffer>> surplus;  // unmapped after the lock
  {
    absl::MutexLock lock(&shared_->mu);
    if (shared_->size != size) surplus.swap(shared_->free);
    shared_->size = size;
    if (!shared_->free.empty()) {
      buffer = std::move(shared_->free.back());
      shared_->free.pop_back();
      std::move(shared_->free.begin(), shared_->free.end(), std::back_inserter(surplus));
      shared_->free.clear();
    }
  }
  surplus.clear();
  if (buffer == nullptr) {
    MR_ASSIGN_OR_RETURN(buffer, VersionBuffer::Create(size));
  }
  return std::shared_ptr<VersionBuffer>(
      buffer.release(), [shared = shared_](VersionBuffer* returned) {
        std::unique_ptr<VersionBuffer> owned(returned);
        absl::MutexLock lock(&shared->mu);
        if (owned->size() == shared->size && shared->free.size() < shared->keep) {
          shared->free.push_back(std::move(owned));
        }
      });
}

}  // namespace millrace
