// A regular expression (PCRE2, UTF-8) with a bound on the work of a match. Thread-safe.
#ifndef MILLRACE_ENVIRONMENTS_PATTERN_H_
#define MILLRACE_ENVIRONMENTS_PATTERN_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

class Pattern {
 public:
  // INVALID_ARGUMENT says what is wrong and at which byte.
  static absl::StatusOr<std::unique_ptr<Pattern>> Compile(absl::string_view expression);
  ~Pattern();

  struct Match {
    size_t begin = 0, end = 0;              // bytes of the text
    std::vector<absl::string_view> groups;  // 0 = the whole match; empty where a group took no part
  };
  // First match at or after byte `from`; false when there is none, or when looking for it would
  // take more than 1,000,000 steps. Bytes that are not UTF-8 match nothing.
  bool Find(absl::string_view text, size_t from, Match* match) const;
  // The last of the matches that follow each other without overlap.
  bool FindLast(absl::string_view text, Match* match) const;
  // The whole text is a match.
  bool MatchesAll(absl::string_view text, Match* match) const;
  // Every match replaced by `by`, as it is.
  std::string Replace(absl::string_view text, absl::string_view by) const;
  int groups() const;  // besides group 0

 private:
  struct Impl;
  explicit Pattern(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_PATTERN_H_
