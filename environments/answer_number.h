// The number that a worked answer ends with, as GSM8K-style tasks judge it. Thread-safe.
#ifndef MILLRACE_ENVIRONMENTS_ANSWER_NUMBER_H_
#define MILLRACE_ENVIRONMENTS_ANSWER_NUMBER_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace millrace {

// An exact fraction of any size (up to 400 digits each). Digits only, without leading zeros.
struct ExactNumber {
  bool negative = false;
  std::string numerator;
  std::string denominator;  // not 0
};
bool operator==(const ExactNumber& a, const ExactNumber& b);  // 1/2 and 0.50 are equal

struct AnswerText {
  // hash, boxed, phrase, number, none
  const char* method = "none";
  std::string text;
};
// Looks for, in this order, and uses the first kind present: what follows the last "####" on its
// line (its leading number); the content of the last \boxed{...} with balanced braces; the number
// behind the last "answer is", "answer:" or "answer ="; the last number of the text.
AnswerText FindAnswerText(absl::string_view completion);

// Value of an answer: sign, $, %, thousands commas, decimals, a/b and \frac{a}{b}, a unit behind
// it, LaTeX spacing and \text{...}. nullopt when it is no number. Exponents are not read.
std::optional<ExactNumber> ParseNumber(absl::string_view text);

// ParseNumber(FindAnswerText(completion).text).
std::optional<ExactNumber> AnswerNumber(absl::string_view completion);

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_ANSWER_NUMBER_H_
