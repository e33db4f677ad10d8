#include "weight_sync/version_writer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "weight_sync/bucket_plan.h"
#include "weight_sync/digest.h"
#include "weight_sync/version_assembly.h"

namespace millrace {
namespace {

constexpr uint64_t kPiece = 128 << 10;  // fits the second-level cache twice

// Copies what lies in [begin, end) of the flat bytes; *tensor is the first one that may reach into
// it, and goes on with it.
void CopyPiece(absl::Span<const NamedSpan> tensors, const VersionManifest& manifest, uint64_t begin,
               uint64_t end, std::byte* base, size_t* tensor) {
  uint64_t at = begin;
  for (size_t i = *tensor; i < manifest.tensors.size() && at < end; ++i) {
    const TensorMeta& t = manifest.tensors[i];
    if (t.offset > at) {
      const uint64_t gap_end = std::min(end, t.offset);
      std::memset(base + at, 0, gap_end - at);
      at = gap_end;
    }
    const uint64_t to = std::min(end, t.offset + t.size);
    if (at < to) {
      std::memcpy(base + at, tensors[i].bytes.data() + (at - t.offset), to - at);
      at = to;
    }
    if (t.offset + t.size > end) break;
    *tensor = i + 1;
  }
  if (at < end) std::memset(base + at, 0, end - at);
}

void WriteUnit(absl::Span<const NamedSpan> tensors, const BucketUnit& unit, std::byte* base,
               VersionManifest* manifest) {
  TensorDigester digester(manifest, unit.first_tensor);
  StreamDigest bucket_digest;
  size_t tensor = unit.first_tensor;
  for (size_t b = unit.first_bucket; b < unit.last_bucket; ++b) {
    BucketMeta& bucket = manifest->buckets[b];
    bucket_digest.Reset();
    for (uint64_t at = bucket.offset; at < bucket.offset + bucket.size; at += kPiece) {
      const uint64_t end = std::min(at + kPiece, bucket.offset + bucket.size);
      CopyPiece(tensors, *manifest, at, end, base, &tensor);
      auto piece = absl::MakeConstSpan(base + at, end - at);
      bucket_digest.Update(piece);
      digester.Update(at, piece);
    }
    bucket.digest = bucket_digest.Finish();
  }
  for (size_t t = unit.first_tensor; t < unit.last_tensor; ++t) {
    manifest->tensors[t].digest = digester.digests()[t - unit.first_tensor];
  }
}

}  // namespace

void WriteVersion(absl::Span<const NamedSpan> tensors, int threads, VersionBuffer* buffer,
                  VersionManifest* manifest) {
  const std::vector<BucketUnit> units = PlanUnits(*manifest);
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t u = next++; u < units.size(); u = next++) {
      WriteUnit(tensors, units[u], buffer->data(), manifest);
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < std::min<int>(threads, static_cast<int>(units.size())); ++i) {
    helpers.emplace_back(work);
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  manifest->digest = ManifestDigest(*manifest);
}

}  // namespace millrace
