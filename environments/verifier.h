// How a completion of a dataset's problem is judged, by name. Thread-safe (const).
#ifndef MILLRACE_ENVIRONMENTS_VERIFIER_H_
#define MILLRACE_ENVIRONMENTS_VERIFIER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

class Verifier {
 public:
  virtual ~Verifier() = default;
  // What is compared, from the answer column; INVALID_ARGUMENT when it can't be compared with.
  virtual absl::StatusOr<std::string> Reference(absl::string_view answer) const = 0;
  // `reference` is one of Reference().
  virtual bool IsRight(const std::string& reference, absl::string_view completion) const = 0;
};

// exact: the text, without white space around it.
// numeric: the exact value of the number that both end with (environments/answer_number.h).
// json: one JSON value, keys in any order, 31 not 31.0 (environments/json_answer.h).
// regex: the text, without white space around it, of the first group of the last match of
//   `pattern` in the completion. A completion without a match is wrong.
// INVALID_ARGUMENT: another name, a pattern that does not compile or has no group, or a pattern for
// another verifier.
absl::StatusOr<std::unique_ptr<Verifier>> MakeVerifier(const std::string& name,
                                                       const std::string& pattern);

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_VERIFIER_H_
