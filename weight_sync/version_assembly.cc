#include "weight_sync/version_assembly.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace millrace {

void TensorDigester::CloseTensorsEndingAt(uint64_t offset) {
  for (const TensorMeta* t = Open(); t != nullptr && t->offset + t->size <= offset; t = Open()) {
    done_.push_back(open_.Finish());
    open_.Reset();
  }
}

void TensorDigester::Update(uint64_t offset, absl::Span<const std::byte> bytes) {
  const uint64_t end = offset + bytes.size();
  CloseTensorsEndingAt(offset);  // tensors without bytes
  for (const TensorMeta* t = Open(); t != nullptr && t->offset < end; t = Open()) {
    const uint64_t from = std::max(offset, t->offset);
    const uint64_t to = std::min(end, t->offset + t->size);
    if (from < to) open_.Update(bytes.subspan(from - offset, to - from));
    if (t->offset + t->size > end) return;
    CloseTensorsEndingAt(t->offset + t->size);
  }
  CloseTensorsEndingAt(end);
}

void TensorDigester::Mark() {
  marked_open_ = open_;
  marked_done_ = done_.size();
}

void TensorDigester::Rewind() {
  open_ = marked_open_;
  done_.resize(marked_done_);
}

VersionAssembly::VersionAssembly(std::shared_ptr<VersionBytes> bytes)
    : bytes_(std::move(bytes)), tensors_(&bytes_->manifest()) {
  tensors_.Mark();
}

absl::Span<std::byte> VersionAssembly::Room() {
  if (complete()) return {};
  const BucketMeta& bucket = manifest().buckets[next_];
  return absl::MakeSpan(bytes_->buffer().data() + bucket.offset + filled_, bucket.size - filled_);
}

void VersionAssembly::Filled(size_t count) {
  // Pieces that fit the second-level cache, so that the second digest finds them there.
  constexpr size_t kPiece = 128 << 10;
  absl::Span<const std::byte> bytes = Room().first(count);
  uint64_t offset = manifest().buckets[next_].offset + filled_;
  for (size_t at = 0; at < count; at += kPiece) {
    absl::Span<const std::byte> piece = bytes.subspan(at, kPiece);
    bucket_digest_.Update(piece);
    tensors_.Update(offset + at, piece);
  }
  filled_ += count;
}

absl::Status VersionAssembly::FinishBucket() {
  const uint64_t digest = bucket_digest_.Finish();
  const uint64_t wanted = manifest().buckets[next_].digest;
  if (digest != wanted) {
    absl::Status status = absl::DataLossError(
        absl::StrCat("bucket ", next_, " of version ", manifest().version, " has digest ",
                     absl::Hex(digest), "; the manifest says ", absl::Hex(wanted)));
    RestartBucket();
    return status;
  }
  tensors_.Mark();
  bucket_digest_.Reset();
  filled_ = 0;
  bytes_->SetReady(++next_);
  return absl::OkStatus();
}

void VersionAssembly::RestartBucket() {
  tensors_.Rewind();
  bucket_digest_.Reset();
  filled_ = 0;
}

absl::Status VersionAssembly::VerifyTensors() {
  const std::vector<uint64_t>& digests = tensors_.digests();
  for (size_t i = 0; i < manifest().tensors.size(); ++i) {
    const TensorMeta& t = manifest().tensors[i];
    if (i >= digests.size()) {
      return absl::DataLossError(absl::StrCat("tensor '", t.name, "' of version ",
                                              manifest().version, " is not complete"));
    }
    if (digests[i] != t.digest) {
      return absl::DataLossError(
          absl::StrCat("tensor '", t.name, "' of version ", manifest().version, " has digest ",
                       absl::Hex(digests[i]), "; the manifest says ", absl::Hex(t.digest)));
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace
