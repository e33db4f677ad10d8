#include "weight_sync/manifest_proto.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace millrace {

v1::Manifest ToProto(const VersionManifest& manifest) {
  v1::Manifest proto;
  proto.set_format(kManifestFormat);
  proto.set_run(manifest.run);
  proto.set_version(manifest.version);
  for (const TensorMeta& t : manifest.tensors) {
    v1::TensorEntry* entry = proto.add_tensors();
    entry->set_name(t.name);
    entry->set_dtype(t.dtype);
    for (int64_t dim : t.shape) entry->add_shape(dim);
    entry->set_offset(t.offset);
    entry->set_size(t.size);
    entry->set_digest(t.digest);
  }
  for (const BucketMeta& b : manifest.buckets) {
    v1::BucketEntry* entry = proto.add_buckets();
    entry->set_offset(b.offset);
    entry->set_size(b.size);
    entry->set_digest(b.digest);
  }
  proto.set_total_size(manifest.total_size);
  proto.set_digest(manifest.digest);
  return proto;
}

absl::StatusOr<VersionManifest> FromProto(const v1::Manifest& proto, const ManifestLimits& limits) {
  if (proto.format() != kManifestFormat) {
    return absl::InvalidArgumentError(absl::StrCat(
        "manifest format ", proto.format(), " is not known; this program reads ", kManifestFormat));
  }
  VersionManifest manifest;
  manifest.run = proto.run();
  manifest.version = proto.version();
  manifest.tensors.reserve(proto.tensors_size());
  for (const v1::TensorEntry& t : proto.tensors()) {
    manifest.tensors.push_back({t.name(),
                                t.dtype(),
                                {t.shape().begin(), t.shape().end()},
                                t.offset(),
                                t.size(),
                                t.digest()});
  }
  manifest.buckets.reserve(proto.buckets_size());
  for (const v1::BucketEntry& b : proto.buckets()) {
    manifest.buckets.push_back({b.offset(), b.size(), b.digest()});
  }
  manifest.total_size = proto.total_size();
  manifest.digest = proto.digest();
  MR_RETURN_IF_ERROR(ValidateManifest(manifest, limits));
  return manifest;
}

v1::SyncStage ToProto(SyncStage stage) {
  return static_cast<v1::SyncStage>(static_cast<int>(stage));  // the same numbers
}

SyncStage FromProto(v1::SyncStage stage) {
  if (!v1::SyncStage_IsValid(stage)) return SyncStage::kNone;
  return static_cast<SyncStage>(static_cast<int>(stage));
}

}  // namespace millrace
