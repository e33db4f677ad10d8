// The receiving end of one version: takes its bytes bucket by bucket, in order, and digests them
// while they are hot in the cache, each byte once for its bucket and once for its tensor. No
// transport gets past it: a bucket becomes ready for others only with the right digest. For one
// thread.
#ifndef MILLRACE_WEIGHT_SYNC_VERSION_ASSEMBLY_H_
#define MILLRACE_WEIGHT_SYNC_VERSION_ASSEMBLY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "weight_sync/digest.h"
#include "weight_sync/version_bytes.h"

namespace millrace {

// The tensor digests of bytes that come in order, from the beginning of tensor `first` on; can go
// back to the last Mark(). `manifest` must outlive it.
class TensorDigester {
 public:
  explicit TensorDigester(const VersionManifest* manifest, size_t first = 0)
      : manifest_(manifest), first_(first) {}
  void Update(uint64_t offset, absl::Span<const std::byte> bytes);
  void Mark();
  void Rewind();
  // Digests of the tensors that are complete, from tensor `first` on.
  const std::vector<uint64_t>& digests() const { return done_; }

 private:
  // The tensor whose bytes come next, or null after the last.
  const TensorMeta* Open() const {
    const size_t i = first_ + done_.size();
    return i < manifest_->tensors.size() ? &manifest_->tensors[i] : nullptr;
  }
  void CloseTensorsEndingAt(uint64_t offset);
  const VersionManifest* const manifest_;
  const size_t first_;
  StreamDigest open_, marked_open_;
  std::vector<uint64_t> done_;
  size_t marked_done_ = 0;
};

class VersionAssembly {
 public:
  // `bytes` has no bucket ready. Its buffer is written unless it is a read-only mapping, which then
  // must hold the bytes already.
  explicit VersionAssembly(std::shared_ptr<VersionBytes> bytes);

  const VersionManifest& manifest() const { return bytes_->manifest(); }
  const std::shared_ptr<VersionBytes>& bytes() const { return bytes_; }
  size_t next_bucket() const { return next_; }
  bool complete() const { return next_ == manifest().buckets.size(); }

  // Where the next bytes of the next bucket go. Not empty unless complete().
  absl::Span<std::byte> Room();
  // `count` bytes of Room() have been filled.
  void Filled(size_t count);
  // The bucket is full: DATA_LOSS naming bucket and digests leaves it empty again, to be fetched
  // once more.
  absl::Status FinishBucket();
  // Forgets the bytes of a bucket that broke off.
  void RestartBucket();
  // After complete(): DATA_LOSS names the first tensor whose digest is wrong.
  absl::Status VerifyTensors();

 private:
  std::shared_ptr<VersionBytes> bytes_;
  size_t next_ = 0;
  uint64_t filled_ = 0;  // of the next bucket
  StreamDigest bucket_digest_;
  TensorDigester tensors_;
};

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_VERSION_ASSEMBLY_H_
