// One version on one process, whole or still arriving: what the bucket server serves from and the
// transports fill. Thread-safe.
#ifndef MILLRACE_WEIGHT_SYNC_VERSION_BYTES_H_
#define MILLRACE_WEIGHT_SYNC_VERSION_BYTES_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "weight_sync/manifest.h"
#include "weight_sync/version_buffer.h"

namespace millrace {

// Buckets become ready in order, so one count says which may be read. Bytes of ready buckets do not
// change any more. One writer; any number of readers.
class VersionBytes {
 public:
  // `on_change` is called after each change, with no lock held; it may be null.
  VersionBytes(VersionManifest manifest, std::shared_ptr<VersionBuffer> buffer,
               std::function<void()> on_change)
      : manifest_(std::move(manifest)),
        buffer_(std::move(buffer)),
        on_change_(std::move(on_change)) {}

  const VersionManifest& manifest() const { return manifest_; }
  const VersionBuffer& buffer() const { return *buffer_; }

  size_t ready() const { return ready_.load(std::memory_order_acquire); }
  bool whole() const { return ready() == manifest_.buckets.size(); }
  // The transfer was given up: no further bucket will become ready here.
  bool failed() const { return failed_.load(std::memory_order_acquire); }

  // Writer only.
  void SetReady(size_t count) {
    ready_.store(count, std::memory_order_release);
    if (on_change_) on_change_();
  }
  void SetFailed() {
    failed_.store(true, std::memory_order_release);
    if (on_change_) on_change_();
  }

 private:
  const VersionManifest manifest_;
  const std::shared_ptr<VersionBuffer> buffer_;
  const std::function<void()> on_change_;
  std::atomic<size_t> ready_{0};
  std::atomic<bool> failed_{false};
};

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_VERSION_BYTES_H_
