#include "model/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/byte_level.h"

namespace millrace {
namespace {

// Unicode White_Space for a character class. PCRE2's \s holds U+180E besides, which is no white
// space to other regular-expression libraries.
constexpr const char kSpace[] =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// `pattern` with \s and \S spelled out.
absl::StatusOr<std::string> SpellOutSpaces(const std::string& pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (escaped == 'S' && in_class) {
        return absl::UnimplementedError(
            absl::StrCat("regular expression \"", pattern, "\": \\S in a class"));
      }
      if (escaped == 's') {
        out += in_class ? kSpace : absl::StrCat("[", kSpace, "]");
      } else if (escaped == 'S') {
        out += absl::StrCat("[^", kSpace, "]");
      } else {
        out += {c, escaped};
      }
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

class Digits : public PretokenizerStep {
 public:
  void Split(absl::string_view text, std::vector<absl::string_view>* pieces) const override {
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
      const size_t length = Utf8CharacterLength(text.substr(at));
      if (length == 0) break;
      if (IsNumeric(CodePoint(text.substr(at), static_cast<int>(length)))) {
        if (at > begin) pieces->push_back(text.substr(begin, at - begin));
        pieces->push_back(text.substr(at, length));
        begin = at + length;
      }
      at += length;
    }
    if (begin < text.size()) pieces->push_back(text.substr(begin));
  }

 private:
  static bool IsNumeric(uint32_t code) {
    if (code < 0x80) return code >= '0' && code <= '9';
    const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
    return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL ||
           category == UTF8PROC_CATEGORY_NO;
  }
};

class Regex : public PretokenizerStep {
 public:
  static absl::StatusOr<std::unique_ptr<PretokenizerStep>> Create(const std::string& pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code* code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
    if (code == nullptr) {
      PCRE2_UCHAR message[256] = {};
      pcre2_get_error_message(error, message, sizeof(message));
      return absl::InvalidArgumentError(absl::StrCat("regular expression \"", pattern, "\" at ",
                                                     offset, ": ",
                                                     reinterpret_cast<const char*>(message)));
    }
    // Without a JIT (some platforms) matching falls back to the interpreter.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    return std::unique_ptr<PretokenizerStep>(new Regex(code));
  }
  ~Regex() override { pcre2_code_free(code_); }

  void Split(absl::string_view text, std::vector<absl::string_view>* pieces) const override {
    pcre2_match_data* match = pcre2_match_data_create_from_pattern(code_, nullptr);
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match);
    size_t at = 0;
    // A failed match (the limit on backtracking included) leaves the rest as one piece.
    while (at < text.size() &&
           pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                       PCRE2_NOTEMPTY | PCRE2_NO_UTF_CHECK, match, nullptr) > 0) {
      if (span[0] > at) pieces->push_back(text.substr(at, span[0] - at));
      pieces->push_back(text.substr(span[0], span[1] - span[0]));
      at = span[1];
    }
    if (at < text.size()) pieces->push_back(text.substr(at));
    pcre2_match_data_free(match);
  }

 private:
  explicit Regex(pcre2_code* code) : code_(code) {}
  pcre2_code* code_;
};

}  // namespace

std::unique_ptr<PretokenizerStep> DigitsStep() { return std::make_unique<Digits>(); }

absl::StatusOr<std::unique_ptr<PretokenizerStep>> RegexStep(const std::string& pattern) {
  MR_ASSIGN_OR_RETURN(const std::string spelled_out, SpellOutSpaces(pattern));
  return Regex::Create(spelled_out);
}

absl::StatusOr<std::unique_ptr<PretokenizerStep>> Gpt2Step() {
  return RegexStep(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
}

std::vector<absl::string_view> Pretokenizer::Split(absl::string_view text) const {
  std::vector<absl::string_view> pieces;
  if (text.empty()) return pieces;
  pieces.push_back(text);
  for (const auto& step : steps_) {
    std::vector<absl::string_view> cut;
    for (absl::string_view piece : pieces) step->Split(piece, &cut);
    pieces = std::move(cut);
  }
  return pieces;
}

}  // namespace millrace
