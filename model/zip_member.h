// One file out of a zip archive (a Python wheel is one). Stored and deflated members; no zip64, no
// encryption.
#ifndef MILLRACE_MODEL_ZIP_MEMBER_H_
#define MILLRACE_MODEL_ZIP_MEMBER_H_

#include <string>

#include "absl/status/status.h"

namespace millrace {

// Writes the only member whose name ends in `suffix` to `out`, checking its length and CRC-32.
// INVALID_ARGUMENT when there is none or more than one, or when the archive is broken; `out` may
// hold a part then.
absl::Status ExtractOnlyMember(const std::string& archive, const std::string& suffix,
                               const std::string& out);

}  // namespace millrace

#endif  // MILLRACE_MODEL_ZIP_MEMBER_H_
