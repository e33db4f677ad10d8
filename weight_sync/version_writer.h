// The sending end of one version: lays the learner's tensors out in a version buffer.
#ifndef MILLRACE_WEIGHT_SYNC_VERSION_WRITER_H_
#define MILLRACE_WEIGHT_SYNC_VERSION_WRITER_H_

#include "absl/types/span.h"
#include "weight_sync/manifest.h"
#include "weight_sync/version_buffer.h"

namespace millrace {

// Copies the bytes of `tensors` to where `manifest` (laid out for them) puts them in `buffer`,
// zeroes the padding, and fills in all digests. Each byte is read once from the tensors; both
// digests are taken while it is hot. Uses up to `threads` threads, the caller's among them; blocks.
void WriteVersion(absl::Span<const NamedSpan> tensors, int threads, VersionBuffer* buffer,
                  VersionManifest* manifest);

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_VERSION_WRITER_H_
