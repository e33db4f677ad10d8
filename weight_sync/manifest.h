// The list of tensors and buckets of one version: how its flat bytes are laid out, and the digests
// that say whether they arrived. Plain structs, no proto (manifest_proto.h converts), no thread.
//
// Layout of the flat bytes: tensors in the given order, each at the next multiple of
// kTensorAlignment; the padding between is zero. Buckets follow one another without gap and cover
// everything.
#ifndef MILLRACE_WEIGHT_SYNC_MANIFEST_H_
#define MILLRACE_WEIGHT_SYNC_MANIFEST_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "weight_sync/publisher.h"

namespace millrace {

inline constexpr uint64_t kTensorAlignment = 64;  // bytes
inline constexpr uint32_t kManifestFormat = 1;

struct TensorMeta {
  std::string name;
  std::string dtype;  // safetensors spelling
  std::vector<int64_t> shape;
  uint64_t offset = 0;  // bytes from the start of the flat bytes
  uint64_t size = 0;    // bytes
  uint64_t digest = 0;  // XXH3-64 of the bytes
  bool operator==(const TensorMeta&) const = default;
};

struct BucketMeta {
  uint64_t offset = 0;  // bytes from the start of the flat bytes
  uint64_t size = 0;    // bytes
  uint64_t digest = 0;  // XXH3-64 of the bytes
  bool operator==(const BucketMeta&) const = default;
};

struct VersionManifest {
  std::string run;
  int64_t version = -1;
  std::vector<TensorMeta> tensors;
  std::vector<BucketMeta> buckets;
  uint64_t total_size = 0;  // bytes
  uint64_t digest = 0;      // XXH3-64 of CanonicalBytes()
  bool operator==(const VersionManifest&) const = default;
};

// What a receiver puts up with from the network.
struct ManifestLimits {
  size_t max_tensors = 1 << 20;
  size_t max_buckets = 1 << 20;
  size_t max_rank = 8;
  size_t max_name_bytes = 1024;
  uint64_t max_bucket_bytes = uint64_t{1} << 30;
  uint64_t max_total_bytes = uint64_t{1} << 43;  // 8 TiB
};

// Bytes of one element; INVALID_ARGUMENT for a dtype that safetensors does not know.
absl::StatusOr<uint64_t> DtypeBytes(const std::string& dtype);

// Lays out tensors and buckets; all digests are 0. INVALID_ARGUMENT names the tensor whose bytes do
// not fit its shape and dtype, or whose name comes twice.
absl::StatusOr<VersionManifest> LayOutManifest(absl::Span<const NamedSpan> tensors,
                                               uint64_t bucket_bytes);

// What `digest` is taken over: for each tensor its name, dtype, shape, offset, size and digest, as
// docs/weight_sync.md gives them byte by byte. Little-endian.
std::string CanonicalBytes(const VersionManifest& manifest);
uint64_t ManifestDigest(const VersionManifest& manifest);

// Checks everything that can be checked without the bytes: INVALID_ARGUMENT or DATA_LOSS (digest)
// names the entry and the number. After OK, every offset and size may be used without a further
// check.
absl::Status ValidateManifest(const VersionManifest& manifest, const ManifestLimits& limits = {});

// The tensors over `base`, the first of total_size bytes; with base null the spans are empty.
std::vector<NamedSpan> SpansOver(const VersionManifest& manifest, const std::byte* base);

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_MANIFEST_H_
