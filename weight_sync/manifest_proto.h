// The manifest and the stages at the door: proto in, proto out.
#ifndef MILLRACE_WEIGHT_SYNC_MANIFEST_PROTO_H_
#define MILLRACE_WEIGHT_SYNC_MANIFEST_PROTO_H_

#include "absl/status/statusor.h"
#include "proto/weight_sync.pb.h"
#include "weight_sync/manifest.h"

namespace millrace {

v1::Manifest ToProto(const VersionManifest& manifest);
// Also validates; an error says what is wrong with which entry.
absl::StatusOr<VersionManifest> FromProto(const v1::Manifest& proto,
                                          const ManifestLimits& limits = {});

v1::SyncStage ToProto(SyncStage stage);
SyncStage FromProto(v1::SyncStage stage);  // kNone for a stage this program does not know

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_MANIFEST_PROTO_H_
