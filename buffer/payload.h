// The per-token arrays of a trajectory as one blob (docs/buffer_store.md gives it byte by byte):
// token ids, mask bits, logprobs, version spans, and an XXH3 checksum over all of it. Thread-safe.
#ifndef MILLRACE_BUFFER_PAYLOAD_H_
#define MILLRACE_BUFFER_PAYLOAD_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/trajectory.h"

namespace millrace {

// Largest T a payload may hold, tokens.
inline constexpr uint32_t kMaxPayloadTokens = 1u << 26;

// The arrays must have equal lengths (ValidateTrajectory).
std::string EncodePayload(const Trajectory& trajectory);

// Fills token_ids, loss_mask, logprobs and versions. DATA_LOSS says what does not fit: the magic, a
// length, or the checksum.
absl::Status DecodePayload(absl::string_view payload, Trajectory* trajectory);

}  // namespace millrace

#endif  // MILLRACE_BUFFER_PAYLOAD_H_
