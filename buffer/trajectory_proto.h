// Trajectories on the wire and in memory. Thread-safe.
#ifndef MILLRACE_BUFFER_TRAJECTORY_PROTO_H_
#define MILLRACE_BUFFER_TRAJECTORY_PROTO_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/trajectory.h"
#include "proto/trajectory.pb.h"

namespace millrace {

// Sampled bytes need not be UTF-8, and protobuf refuses to parse a string that is not: bad bytes of
// text fields become U+FFFD. The tokens are the truth, the texts are for people.
void ToProto(const Trajectory& trajectory, v1::Trajectory* proto);

// INVALID_ARGUMENT when the status is none that is known. Does not validate (ValidateTrajectory).
absl::StatusOr<Trajectory> FromProto(const v1::Trajectory& proto);

// `text` with every byte that is not part of valid UTF-8 replaced by U+FFFD.
std::string ValidUtf8(absl::string_view text);

}  // namespace millrace

#endif  // MILLRACE_BUFFER_TRAJECTORY_PROTO_H_
