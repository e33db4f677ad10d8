#include "weight_sync/manifest.h"

#include <cstring>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "weight_sync/bucket_plan.h"
#include "weight_sync/digest.h"

namespace millrace {
namespace {

uint64_t AlignUp(uint64_t offset) {
  return (offset + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

void AppendU64(uint64_t value, std::string* out) {
  for (int i = 0; i < 8; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

void AppendString(const std::string& text, std::string* out) {
  AppendU64(text.size(), out);
  out->append(text);
}

// dtype and shape as bytes; refuses negative dimensions and products beyond 2^63.
absl::StatusOr<uint64_t> ShapeBytes(const std::string& name, const std::string& dtype,
                                    const std::vector<int64_t>& shape) {
  absl::StatusOr<uint64_t> element = DtypeBytes(dtype);
  if (!element.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", name, "': ", element.status().message()));
  }
  bool zero = false;
  for (int64_t dim : shape) {
    if (dim < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", name, "' has the negative dimension ", dim));
    }
    zero |= dim == 0;
  }
  if (zero) return 0;
  uint64_t bytes = *element;
  for (int64_t dim : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes) || bytes >> 63 != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", name, "': the product of its dimensions overflows"));
    }
  }
  return bytes;
}

absl::Status ValidateTensors(const VersionManifest& manifest, const ManifestLimits& limits) {
  absl::flat_hash_set<absl::string_view> names;
  uint64_t end = 0;
  for (const TensorMeta& t : manifest.tensors) {
    if (t.name.empty() || t.name.size() > limits.max_name_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("a tensor's name has ", t.name.size(),
                                                     " bytes; 1 to ", limits.max_name_bytes,
                                                     " are allowed"));
    }
    if (t.shape.size() > limits.max_rank) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", t.name, "' has ", t.shape.size(),
                                                     " dimensions; at most ", limits.max_rank,
                                                     " are allowed"));
    }
    if (!names.insert(t.name).second) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", t.name, "' comes twice"));
    }
    MR_ASSIGN_OR_RETURN(uint64_t bytes, ShapeBytes(t.name, t.dtype, t.shape));
    if (bytes != t.size) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", t.name, "' has size ", t.size,
                                                     "; its shape and dtype need ", bytes));
    }
    // Only the one offset that follows from the order is right, so neither overlaps nor holes pass.
    if (t.offset != AlignUp(end)) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", t.name, "' is at offset ",
                                                     t.offset, "; the one before it ends at ", end,
                                                     ", so it must be at ", AlignUp(end)));
    }
    if (t.size > manifest.total_size || t.offset > manifest.total_size - t.size) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", t.name, "' ends beyond the ",
                                                     manifest.total_size, " bytes of the version"));
    }
    end = t.offset + t.size;
  }
  if (end != manifest.total_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensors end at ", end, ", but total_size is ", manifest.total_size));
  }
  return absl::OkStatus();
}

absl::Status ValidateBuckets(const VersionManifest& manifest, const ManifestLimits& limits) {
  uint64_t end = 0;
  for (size_t i = 0; i < manifest.buckets.size(); ++i) {
    const BucketMeta& b = manifest.buckets[i];
    if (b.offset != end) {
      return absl::InvalidArgumentError(absl::StrCat("bucket ", i, " is at offset ", b.offset,
                                                     "; the one before it ends at ", end));
    }
    if (b.size == 0 || b.size > limits.max_bucket_bytes || b.size > manifest.total_size - end) {
      return absl::InvalidArgumentError(absl::StrCat(
          "bucket ", i, " has ", b.size, " bytes; allowed are 1 to ", limits.max_bucket_bytes,
          " within the ", manifest.total_size, " bytes of the version"));
    }
    end += b.size;
  }
  if (end != manifest.total_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the buckets end at ", end, ", but total_size is ", manifest.total_size));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint64_t> DtypeBytes(const std::string& dtype) {
  static const auto* const kBytes = new absl::flat_hash_map<std::string, uint64_t>{
      {"F64", 8},     {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F8_E4M3", 1},
      {"F8_E5M2", 1}, {"I64", 8}, {"I32", 4}, {"I16", 2},  {"I8", 1},
      {"U64", 8},     {"U32", 4}, {"U16", 2}, {"U8", 1},   {"BOOL", 1}};
  auto it = kBytes->find(dtype);
  if (it == kBytes->end()) {
    return absl::InvalidArgumentError(absl::StrCat("unknown dtype '", dtype, "'"));
  }
  return it->second;
}

absl::StatusOr<VersionManifest> LayOutManifest(absl::Span<const NamedSpan> tensors,
                                               uint64_t bucket_bytes) {
  if (bucket_bytes < 4096 || bucket_bytes > ManifestLimits().max_bucket_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("bucket_bytes is ", bucket_bytes,
                                                   "; it must be between 4096 and ",
                                                   ManifestLimits().max_bucket_bytes));
  }
  VersionManifest manifest;
  uint64_t end = 0;
  for (const NamedSpan& span : tensors) {
    TensorMeta t{span.name, span.dtype, span.shape, AlignUp(end), span.bytes.size(), 0};
    end = t.offset + t.size;
    manifest.tensors.push_back(std::move(t));
  }
  manifest.total_size = end;
  if (end == 0) return absl::InvalidArgumentError("a version needs at least one byte of tensors");
  manifest.buckets = PlanBuckets(manifest.tensors, bucket_bytes);
  MR_RETURN_IF_ERROR(ValidateTensors(manifest, ManifestLimits()));
  return manifest;
}

std::string CanonicalBytes(const VersionManifest& manifest) {
  std::string out;
  AppendU64(manifest.tensors.size(), &out);
  for (const TensorMeta& t : manifest.tensors) {
    AppendString(t.name, &out);
    AppendString(t.dtype, &out);
    AppendU64(t.shape.size(), &out);
    for (int64_t dim : t.shape) AppendU64(static_cast<uint64_t>(dim), &out);
    AppendU64(t.offset, &out);
    AppendU64(t.size, &out);
    AppendU64(t.digest, &out);
  }
  return out;
}

uint64_t ManifestDigest(const VersionManifest& manifest) {
  std::string bytes = CanonicalBytes(manifest);
  return Digest64(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
}

absl::Status ValidateManifest(const VersionManifest& manifest, const ManifestLimits& limits) {
  if (manifest.version < 0) {
    return absl::InvalidArgumentError(absl::StrCat("version ", manifest.version, " is negative"));
  }
  if (manifest.tensors.empty() || manifest.tensors.size() > limits.max_tensors) {
    return absl::InvalidArgumentError(absl::StrCat("the manifest has ", manifest.tensors.size(),
                                                   " tensors; allowed are 1 to ",
                                                   limits.max_tensors));
  }
  if (manifest.buckets.empty() || manifest.buckets.size() > limits.max_buckets) {
    return absl::InvalidArgumentError(absl::StrCat("the manifest has ", manifest.buckets.size(),
                                                   " buckets; allowed are 1 to ",
                                                   limits.max_buckets));
  }
  if (manifest.total_size == 0 || manifest.total_size > limits.max_total_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("total_size is ", manifest.total_size,
                                                   "; allowed are 1 to ", limits.max_total_bytes));
  }
  MR_RETURN_IF_ERROR(ValidateTensors(manifest, limits));
  MR_RETURN_IF_ERROR(ValidateBuckets(manifest, limits));
  if (uint64_t digest = ManifestDigest(manifest); digest != manifest.digest) {
    return absl::DataLossError(absl::StrCat("the manifest of version ", manifest.version,
                                            " has digest ", absl::Hex(manifest.digest),
                                            "; its entries give ", absl::Hex(digest)));
  }
  return absl::OkStatus();
}

std::vector<NamedSpan> SpansOver(const VersionManifest& manifest, const std::byte* base) {
  std::vector<NamedSpan> spans;
  spans.reserve(manifest.tensors.size());
  for (const TensorMeta& t : manifest.tensors) {
    spans.push_back({t.name, t.dtype, t.shape, {}});
    if (base != nullptr) spans.back().bytes = absl::MakeConstSpan(base + t.offset, t.size);
  }
  return spans;
}

}  // namespace millrace
