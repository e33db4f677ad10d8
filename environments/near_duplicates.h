// Which texts are nearly the same: Jaccard similarity of their sets of shingles (three words in a
// row). Thread-safe (plain functions).
#ifndef MILLRACE_ENVIRONMENTS_NEAR_DUPLICATES_H_
#define MILLRACE_ENVIRONMENTS_NEAR_DUPLICATES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace millrace {

// Lower-case words (letters and digits, any byte from 128 on) and other signs, one each; "3 + 4"
// is three of them. White space only parts them.
std::vector<std::string> NormalisedWords(absl::string_view text);

// Hashes of the shingles, sorted, without repeats. A text of fewer than three words is one shingle;
// one without words has none.
std::vector<uint64_t> Shingles(absl::string_view text);

// |a and b| / |a or b| of sorted sets; 0 when both are empty.
double Jaccard(absl::Span<const uint64_t> a, absl::Span<const uint64_t> b);

// Every pair (i < j) whose similarity is at least `threshold` (in (0, 1]). All of them: candidates
// share one of their rarest shingles (prefix filter of R. Bayardo, Y. Ma, R. Srikant, "Scaling up
// all pairs similarity search", WWW 2007) and are then compared. Pairs of the same j are in order.
std::vector<std::pair<size_t, size_t>> NearDuplicatePairs(
    absl::Span<const std::vector<uint64_t>> sets, double threshold);

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_NEAR_DUPLICATES_H_
