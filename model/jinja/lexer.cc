#include "model/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/status_macros.h"
#include "model/byte_level.h"
#include "model/jinja/text.h"

namespace millrace::jinja {
namespace {

using Kind = Token::Kind;

bool IsNameStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<int8_t>(c) < 0;
}
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(absl::string_view source) {
    // Newlines of all kinds become \n, and one at the very end goes.
    source_ = absl::StrReplaceAll(source, {{"\r\n", "\n"}, {"\r", "\n"}});
    if (absl::EndsWith(source_, "\n")) source_.pop_back();
  }

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) MR_RETURN_IF_ERROR(TextAndTag());
    Emit(Kind::kEnd);
    return std::move(tokens_);
  }

 private:
  absl::string_view Rest() const { return absl::string_view(source_).substr(at_); }
  bool Starts(absl::string_view with) const { return absl::StartsWith(Rest(), with); }
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }
  void Skip(size_t n) {
    n = std::min(n, source_.size() - at_);
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(at_ + n), '\n'));
    at_ += n;
  }
  void SkipSpaces() {
    while (at_ < source_.size() && IsPythonSpace(CodeAt(source_, at_))) {
      Skip(CharacterLength(source_, at_));
    }
  }
  Token& Emit(Kind kind, std::string text = "") {
    Token token;
    token.kind = kind;
    token.line = line_;
    token.text = std::move(text);
    tokens_.push_back(std::move(token));
    return tokens_.back();
  }

  static bool AllSpaces(absl::string_view text) {
    for (size_t at = 0; at < text.size(); at += CharacterLength(text, at)) {
      if (!IsPythonSpace(CodeAt(text, at))) return false;
    }
    return true;
  }
  static absl::string_view RightStripped(absl::string_view text) {
    while (!text.empty()) {
      size_t last = text.size() - 1;
      while (last > 0 && (static_cast<uint8_t>(text[last]) & 0xc0) == 0x80) --last;
      if (!IsPythonSpace(CodeAt(text, last))) break;
      text.remove_suffix(text.size() - last);
    }
    return text;
  }

  // `text` before a tag whose sign is `sign` ('-', '+' or none).
  absl::string_view BeforeTag(absl::string_view text, char sign, bool variable) const {
    if (sign == '-') return RightStripped(text);
    if (sign == '+' || variable) return text;
    const size_t newline = text.rfind('\n');
    const size_t begin = newline == absl::string_view::npos ? 0 : newline + 1;
    if ((begin > 0 || line_starting_) && AllSpaces(text.substr(begin)))
      return text.substr(0, begin);
    return text;
  }

  size_t FindTag() const {
    for (size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] != '{') continue;
      const char c = source_[i + 1];
      if (c == '{' || c == '%' || c == '#') return i;
    }
    return std::string::npos;
  }

  absl::Status TextAndTag() {
    const size_t tag = FindTag();
    const absl::string_view before =
        absl::string_view(source_).substr(at_, tag == std::string::npos ? tag : tag - at_);
    if (tag == std::string::npos) {
      if (!before.empty()) Emit(Kind::kText, std::string(before));
      Skip(before.size());
      return absl::OkStatus();
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const bool signed_tag = sign == '-' || sign == '+';
    const absl::string_view text = BeforeTag(before, signed_tag ? sign : '\0', kind == '{');
    if (!text.empty()) Emit(Kind::kText, std::string(text));
    Skip(before.size());
    if (kind == '#') return Comment();
    const size_t opening = signed_tag ? 3 : 2;
    Emit(kind == '{' ? Kind::kVariableBegin : Kind::kBlockBegin);
    Skip(opening);
    return Inside(kind == '{');
  }

  // Over the end of a tag, `length` bytes, and what white-space control takes behind it.
  void AfterTag(size_t length, bool trim_newline) {
    const char sign = length == 3 ? Peek() : '\0';
    Skip(length);
    const size_t begin = at_;
    if (sign == '-') {
      SkipSpaces();
    } else if (trim_newline && sign != '+' && Peek() == '\n') {
      Skip(1);
    }
    line_starting_ = at_ > begin && source_[at_ - 1] == '\n';
  }

  absl::Status Comment() {
    const size_t end = source_.find("#}", at_ + 2);
    if (end == std::string::npos) return ErrorAt(line_, "a comment is not closed");
    const char sign = end > at_ + 2 ? source_[end - 1] : '\0';
    const bool signed_end = sign == '-' || sign == '+';
    Skip(end - at_ - (signed_end ? 1 : 0));
    AfterTag(signed_end ? 3 : 2, /*trim_newline=*/true);
    return absl::OkStatus();
  }

  // Length of the end of the tag here; 0 = none.
  size_t EndLength(bool variable) const {
    const absl::string_view end = variable ? "}}" : "%}";
    if (Starts(end)) return 2;
    const bool sign = Peek() == '-' || (!variable && Peek() == '+');
    return sign && absl::StartsWith(Rest().substr(1), end) ? 3 : 0;
  }

  absl::Status Inside(bool variable) {
    const int opened_at = line_;
    std::string open;  // brackets that wait to be closed
    while (true) {
      SkipSpaces();
      if (at_ >= source_.size()) return ErrorAt(opened_at, "a tag is not closed");
      if (const size_t end = EndLength(variable); end > 0 && open.empty()) {
        Emit(variable ? Kind::kVariableEnd : Kind::kBlockEnd);
        AfterTag(end, /*trim_newline=*/!variable);
        return absl::OkStatus();
      }
      const char c = Peek();
      if (IsNameStart(c)) {
        Name();
      } else if (IsDigit(c)) {
        MR_RETURN_IF_ERROR(Number());
      } else if (c == '"' || c == '\'') {
        MR_RETURN_IF_ERROR(String(c));
      } else {
        MR_RETURN_IF_ERROR(Operator(&open));
      }
    }
  }

  void Name() {
    size_t n = 0;
    while (IsNameStart(Peek(n)) || IsDigit(Peek(n))) ++n;
    Emit(Kind::kName, std::string(Rest().substr(0, n)));
    Skip(n);
  }

  absl::Status Number() {
    size_t n = 0;
    bool is_float = false;
    const bool after_dot = !tokens_.empty() && tokens_.back().IsOperator(".");
    const auto digits = [&] {
      while (IsDigit(Peek(n)) || (Peek(n) == '_' && IsDigit(Peek(n + 1)))) ++n;
    };
    digits();
    if (!after_dot && Peek(n) == '.' && IsDigit(Peek(n + 1))) {
      is_float = true;
      ++n;
      digits();
    }
    const size_t sign = Peek(n + 1) == '+' || Peek(n + 1) == '-' ? 1 : 0;
    if (!after_dot && (Peek(n) == 'e' || Peek(n) == 'E') && IsDigit(Peek(n + 1 + sign))) {
      is_float = true;
      n += 1 + sign;
      digits();
    }
    if (IsNameStart(Peek(n))) {
      return UnsupportedAt(line_, absl::StrCat("the number ", Rest().substr(0, n + 1), "..."));
    }
    const std::string text = absl::StrReplaceAll(Rest().substr(0, n), {{"_", ""}});
    Token& token = Emit(is_float ? Kind::kFloat : Kind::kInteger, text);
    const bool good =
        is_float ? absl::SimpleAtod(text, &token.number) : absl::SimpleAtoi(text, &token.integer);
    if (!good) return UnsupportedAt(line_, absl::StrCat("the number ", text));
    Skip(n);
    return absl::OkStatus();
  }

  absl::Status String(char quote) {
    Token token;
    token.kind = Kind::kString;
    token.line = line_;
    Skip(1);
    while (Peek() != quote) {
      if (at_ >= source_.size()) return ErrorAt(token.line, "a string is not closed");
      if (Peek() == '\\') {
        MR_RETURN_IF_ERROR(Escape(&token.text));
      } else {
        token.text.push_back(Peek());
        Skip(1);
      }
    }
    Skip(1);
    tokens_.push_back(std::move(token));
    return absl::OkStatus();
  }

  absl::Status Escape(std::string* out) {
    static constexpr absl::string_view kLetters = "nrtabfv\\'\"", kMeaning = "\n\r\t\a\b\f\v\\'\"";
    const char c = Peek(1);
    if (const size_t i = kLetters.find(c); i != absl::string_view::npos && c != '\0') {
      out->push_back(kMeaning[i]);
      Skip(2);
      return absl::OkStatus();
    }
    if (c == '\n') {  // the line goes on
      Skip(2);
      return absl::OkStatus();
    }
    const size_t length = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (length == 0) {
      if (IsDigit(c) || c == 'N') {
        return UnsupportedAt(line_, absl::StrCat("the escape \\", std::string(1, c)));
      }
      out->push_back('\\');
      Skip(1);
      return absl::OkStatus();
    }
    uint32_t code = 0;
    const absl::string_view hex = Rest().substr(2, length);
    const auto end = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
    if (hex.size() < length || end.ptr != hex.data() + length || code > 0x10ffff ||
        (code >= 0xd800 && code < 0xe000)) {
      return ErrorAt(line_,
                     absl::StrCat("a string has the broken escape \\", std::string(1, c), hex));
    }
    AppendUtf8(code, out);
    Skip(2 + length);
    return absl::OkStatus();
  }

  absl::Status Operator(std::string* open) {
    static constexpr absl::string_view kOperators[] = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (absl::string_view op : kOperators) {
      if (!Starts(op)) continue;
      const char c = op[0];
      if (c == '(' || c == '[' || c == '{') open->push_back(c);
      if (c == ')' || c == ']' || c == '}') {
        const char opening = c == ')' ? '(' : c == ']' ? '[' : '{';
        if (open->empty() || open->back() != opening) {
          return ErrorAt(line_, absl::StrCat("unexpected '", op, "'"));
        }
        open->pop_back();
      }
      Emit(Kind::kOperator, std::string(op));
      Skip(op.size());
      return absl::OkStatus();
    }
    return ErrorAt(line_, absl::StrCat("unexpected character '",
                                       Rest().substr(0, CharacterLength(source_, at_)), "'"));
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the tag before ended with a newline
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Lex(absl::string_view source) { return Lexer(source).Run(); }

absl::Status ErrorAt(int line, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", what));
}

absl::Status UnsupportedAt(int line, absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat("line ", line, ": ", what, " is not supported"));
}

}  // namespace millrace::jinja
