// Memory for the flat bytes of a version: a memfd, so that the kernel can send its pages without a
// copy and a process of the same host can map them. Pages are kept for the next version.
#ifndef MILLRACE_WEIGHT_SYNC_VERSION_BUFFER_H_
#define MILLRACE_WEIGHT_SYNC_VERSION_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace millrace {

// One mapping of a memfd. Immovable; the bytes are the caller's to guard.
class VersionBuffer {
 public:
  // `size` bytes of zero, readable and writable. RESOURCE_EXHAUSTED when the system has no memory.
  static absl::StatusOr<std::unique_ptr<VersionBuffer>> Create(uint64_t size);
  // Maps `size` bytes of another process's memfd read-only and takes the descriptor over.
  // INVALID_ARGUMENT when the file is shorter or may still shrink.
  static absl::StatusOr<std::unique_ptr<VersionBuffer>> MapReadOnly(int fd, uint64_t size);
  ~VersionBuffer();
  VersionBuffer(const VersionBuffer&) = delete;
  VersionBuffer& operator=(const VersionBuffer&) = delete;

  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  int fd() const { return fd_; }
  bool writable() const { return writable_; }

 private:
  VersionBuffer(int fd, std::byte* data, uint64_t size, bool writable)
      : fd_(fd), data_(data), size_(size), writable_(writable) {}
  const int fd_;
  std::byte* const data_;
  const uint64_t size_;
  const bool writable_;
};

// Hands out buffers and takes them back when the last reader drops them. Thread-safe; buffers may
// outlive the pool.
class VersionBufferPool {
 public:
  // At most `keep` buffers are kept for reuse, and only those of the size asked for last; what a
  // Take does not need of them is given back to the system.
  explicit VersionBufferPool(size_t keep = 2);
  absl::StatusOr<std::shared_ptr<VersionBuffer>> Take(uint64_t size);

 private:
  struct Shared {
    absl::Mutex mu;
    size_t keep ABSL_GUARDED_BY(mu);
    uint64_t size ABSL_GUARDED_BY(mu) = 0;
    std::vector<std::unique_ptr<VersionBuffer>> free ABSL_GUARDED_BY(mu);
  };
  std::shared_ptr<Shared> shared_;
};

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_VERSION_BUFFER_H_
