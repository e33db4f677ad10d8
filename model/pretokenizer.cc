#include "model/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

constexpr absl::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr absl::string_view kGpt2ShortPattern =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr absl::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr absl::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::optional<WordRule> RuleOf(absl::string_view pattern) {
  if (pattern == kGpt2Pattern || pattern == kGpt2ShortPattern) return WordRule::kGpt2;
  if (pattern == kQwen2Pattern) return WordRule::kQwen2;
  if (pattern == kLlama3Pattern) return WordRule::kLlama3;
  return std::nullopt;
}

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

// Turns matches and what lies between them into pieces.
class Cutter {
 public:
  Cutter(absl::string_view text, SplitOptions options, PieceSink sink)
      : text_(text), options_(options), sink_(sink) {}
  // In order, not overlapping.
  void Match(size_t begin, size_t end) {
    if (begin > done_) Part(done_, begin, options_.invert);
    if (end > begin) Part(begin, end, !options_.invert);
    done_ = end;
  }
  void Finish() {
    if (done_ < text_.size()) Part(done_, text_.size(), options_.invert);
    Flush();
  }

 private:
  // A part joins the piece being collected or starts a new one.
  void Part(size_t begin, size_t end, bool match) {
    bool join = false;
    switch (options_.behavior) {
      case SplitBehavior::kIsolated:
        break;
      case SplitBehavior::kRemoved:
        if (match) return Flush();
        break;
      case SplitBehavior::kContiguous:
        join = match == last_match_;
        break;
      case SplitBehavior::kMergedWithPrevious:
        join = match && !last_match_;
        break;
      case SplitBehavior::kMergedWithNext:
        join = last_match_ && !match;
        break;
    }
    if (!join || !open_) {
      Flush();
      begin_ = begin;
    }
    end_ = end;
    open_ = true;
    last_match_ = match;
  }
  void Flush() {
    if (open_) sink_(text_.substr(begin_, end_ - begin_));
    open_ = false;
  }

  const absl::string_view text_;
  const SplitOptions options_;
  PieceSink sink_;
  size_t done_ = 0;
  bool open_ = false, last_match_ = false;
  size_t begin_ = 0, end_ = 0;  // of the piece being collected
};

class Regex : public PretokenizerStep {
 public:
  static absl::StatusOr<std::unique_ptr<PretokenizerStep>> Create(const std::string& pattern,
                                                                  SplitOptions options) {
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
    return std::unique_ptr<PretokenizerStep>(new Regex(code, options));
  }
  ~Regex() override { pcre2_code_free(code_); }

  void Split(absl::string_view text, PieceSink sink) const override {
    pcre2_match_data* match = pcre2_match_data_create_from_pattern(code_, nullptr);
    const PCRE2_SIZE* span = pcre2_get_ovector_pointer(match);
    Cutter cutter(text, options_, sink);
    size_t at = 0;
    // A failed match (the limit on backtracking included) leaves the rest as one piece. A match may
    // begin before `at` (\K in a look-behind): it ends the search, too.
    while (at < text.size() &&
           pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                       PCRE2_NOTEMPTY | PCRE2_NO_UTF_CHECK, match, nullptr) > 0 &&
           span[0] >= at && span[1] > at && span[0] <= span[1]) {
      cutter.Match(span[0], span[1]);
      at = span[1];
    }
    cutter.Finish();
    pcre2_match_data_free(match);
  }

 private:
  Regex(pcre2_code* code, SplitOptions options) : code_(code), options_(options) {}
  pcre2_code* code_;
  const SplitOptions options_;
};

class Literal : public PretokenizerStep {
 public:
  Literal(std::string literal, SplitOptions options)
      : literal_(std::move(literal)), options_(options) {}
  void Split(absl::string_view text, PieceSink sink) const override {
    Cutter cutter(text, options_, sink);
    for (size_t at = 0; (at = text.find(literal_, at)) != absl::string_view::npos;) {
      cutter.Match(at, at + literal_.size());
      at += literal_.size();
    }
    cutter.Finish();
  }

 private:
  const std::string literal_;
  const SplitOptions options_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PretokenizerStep>> RegexStep(const std::string& pattern,
                                                            SplitOptions options) {
  const std::optional<WordRule> rule = RuleOf(pattern);
  // Every character is in a match of these.
  const bool whole = options.behavior == SplitBehavior::kIsolated ||
                     (options.behavior == SplitBehavior::kRemoved && options.invert);
  if (rule.has_value() && whole) return WordStep(*rule);
  MR_ASSIGN_OR_RETURN(const std::string spelled_out, SpellOutSpaces(pattern));
  return Regex::Create(spelled_out, options);
}

std::unique_ptr<PretokenizerStep> LiteralStep(const std::string& literal, SplitOptions options) {
  return std::make_unique<Literal>(literal, options);
}

void Pretokenizer::SplitFrom(size_t step, absl::string_view text, PieceSink sink) const {
  if (text.empty()) return;
  if (step == steps_.size()) return sink(text);
  steps_[step]->Split(text, [&](absl::string_view piece) { SplitFrom(step + 1, piece, sink); });
}

}  // namespace millrace
