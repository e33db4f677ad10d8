// Operations on text that filters and methods share. Provenance is kept.
#ifndef MILLRACE_MODEL_JINJA_TEXT_FUNCTIONS_H_
#define MILLRACE_MODEL_JINJA_TEXT_FUNCTIONS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/text.h"
#include "model/jinja/value.h"

namespace millrace::jinja {

enum class Side { kLeft, kRight, kBoth };
// Without the characters of `set` at the ends; null = white space.
Text Strip(const Text& text, Side side, const Text* set);
Text Upper(const Text& text);
Text Lower(const Text& text);
// The first letter upper, the rest lower case.
Text Capitalize(const Text& text);
// Every letter behind a non-letter upper, the others lower case (Python's str.title).
Text Title(const Text& text);
// The first letter of every word upper, the others lower case, as the filter `title` has it: words
// begin behind white space, hyphens and opening brackets.
Text TitleWords(const Text& text);
// `most` < 0: all.
absl::StatusOr<Text> Replace(Interpreter* in, const Text& text, const Text& from, const Text& to,
                             int64_t most);
// At `separator` (null: at white space), at most `most` times (< 0: everywhere).
absl::StatusOr<List> SplitText(Interpreter* in, const Text& text, const Text* separator,
                               int64_t most);
absl::StatusOr<List> SplitTextFromRight(Interpreter* in, const Text& text, const Text* separator,
                                        int64_t most);
List SplitLines(const Text& text, bool keep_ends);
absl::StatusOr<Text> Join(Interpreter* in, const Text& separator, const std::vector<Value>& items);

}  // namespace millrace::jinja

#endif  // MILLRACE_MODEL_JINJA_TEXT_FUNCTIONS_H_
