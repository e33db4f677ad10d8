// Cuts a template into tokens: text, and what stands in {{ }} and {% %}. Comments are dropped.
// White space around tags as in Jinja with trim_blocks and lstrip_blocks on, which chat templates
// are written for: the newline behind a {% %} goes, and so do blanks before one at the start of a
// line; a `-` at either side of a tag takes all white space there.
#ifndef MILLRACE_MODEL_JINJA_LEXER_H_
#define MILLRACE_MODEL_JINJA_LEXER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace::jinja {

struct Token {
  enum class Kind {
    kText,           // between tags; `text`
    kVariableBegin,  // {{
    kVariableEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kString,    // `text` without quotes and escapes
    kInteger,   // `integer`
    kFloat,     // `number`
    kOperator,  // `text`
    kEnd
  };
  Kind kind = Kind::kEnd;
  int line = 1;
  std::string text;
  int64_t integer = 0;
  double number = 0;

  bool Is(Kind k, absl::string_view t) const { return kind == k && text == t; }
  bool IsName(absl::string_view name) const { return Is(Kind::kName, name); }
  bool IsOperator(absl::string_view op) const { return Is(Kind::kOperator, op); }
};

// The last token is kEnd. `source` is well-formed UTF-8. Errors name the line.
absl::StatusOr<std::vector<Token>> Lex(absl::string_view source);

// INVALID_ARGUMENT "line N: what".
absl::Status ErrorAt(int line, absl::string_view what);
// UNIMPLEMENTED "line N: what is not supported".
absl::Status UnsupportedAt(int line, absl::string_view what);

}  // namespace millrace::jinja

#endif  // MILLRACE_MODEL_JINJA_LEXER_H_
