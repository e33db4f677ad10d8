// The words of GPT-2's, Qwen2's and Llama-3's regular expressions without a regular expression.
#include <algorithm>
#include <array>
#include <memory>

#include "model/byte_level.h"
#include "model/pretokenizer.h"
#include "model/unicode_classes.h"

namespace millrace {
namespace {

// The text, character by character.
class Scanner {
 public:
  explicit Scanner(absl::string_view text) : text_(text), classes_(CharClasses::Get()) {}

  // Class of the character at `at`, whose length goes to *length. At the end: kOther and length 0.
  CharClass At(size_t at, size_t* length) const {
    if (at >= text_.size()) {
      *length = 0;
      return CharClass::kOther;
    }
    const uint8_t lead = static_cast<uint8_t>(text_[at]);
    if (lead < 0x80) {
      *length = 1;
      return classes_.Of(lead);
    }
    *length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    *length = std::min(*length, text_.size() - at);
    return classes_.Of(CodePoint(text_.substr(at), static_cast<int>(*length)));
  }
  // End of the run of `wanted` that starts at `at`.
  size_t Run(size_t at, CharClass wanted) const {
    for (size_t length = 0; at < text_.size() && At(at, &length) == wanted;) at += length;
    return at;
  }
  // End of the run of characters that are neither letter, number nor space.
  size_t RunOfSymbols(size_t at) const {
    for (size_t length = 0; at < text_.size() && IsSymbol(At(at, &length));) at += length;
    return at;
  }
  static bool IsSymbol(CharClass c) {
    return c != CharClass::kLetter && c != CharClass::kNumber && c != CharClass::kSpace;
  }
  // End of white space from `at` to the next word: the run, without its last character unless the
  // run ends the text or is that character: \s+(?!\S)|\s+
  size_t Spaces(size_t at) const {
    const size_t end = Run(at, CharClass::kSpace);
    if (end == text_.size()) return end;
    size_t last = end - 1;
    while (last > at && (static_cast<uint8_t>(text_[last]) & 0xc0) == 0x80) --last;
    return last > at ? last : end;
  }
  // End of 's, 't, 're, 've, 'm, 'll or 'd at `at`; `at` when there is none.
  size_t Contraction(size_t at, bool any_case) const {
    if (text_[at] != '\'') return at;
    const auto letter = [&](size_t i) -> char {
      const char c = i < text_.size() ? text_[i] : '\0';
      return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    };
    const char first = letter(at + 1), second = letter(at + 2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 2;
    if ((first == 'r' || first == 'v') && second == 'e') return at + 3;
    if (first == 'l' && second == 'l') return at + 3;
    // U+017F, long s, is an s where case does not matter.
    if (any_case && text_.substr(at + 1, 2) == "\u017f") return at + 3;
    return at;
  }
  absl::string_view text() const { return text_; }

 private:
  absl::string_view text_;
  const CharClasses& classes_;
};

// '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t NextGpt2(const Scanner& s, size_t at) {
  if (const size_t end = s.Contraction(at, false); end > at) return end;
  size_t length = 0;
  size_t begin = at;
  CharClass c = s.At(at, &length);
  if (s.text()[at] == ' ') {
    const CharClass next = s.At(at + 1, &length);
    if (length == 0 || next == CharClass::kSpace) return s.Spaces(at);
    begin = at + 1;
    c = next;
  }
  if (c == CharClass::kSpace) return s.Spaces(at);
  if (c == CharClass::kLetter || c == CharClass::kNumber) return s.Run(begin + length, c);
  return s.RunOfSymbols(begin + length);
}

bool IsNewline(char c) { return c == '\r' || c == '\n'; }

// \s*[\r\n]+|\s+(?!\S)|\s+
size_t SpacesAndNewlines(const Scanner& s, size_t at) {
  const absl::string_view text = s.text();
  for (size_t i = s.Run(at, CharClass::kSpace); i > at; --i) {
    if (IsNewline(text[i - 1])) return i;
  }
  return s.Spaces(at);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,most}| ?[^\s\p{L}\p{N}]+[\r\n]*|
// \s*[\r\n]+|\s+(?!\S)|\s+
size_t NextQwen2(const Scanner& s, size_t at, int most_digits) {
  if (const size_t end = s.Contraction(at, true); end > at) return end;
  const absl::string_view text = s.text();
  size_t length = 0;
  const CharClass c = s.At(at, &length);
  if (c == CharClass::kLetter) return s.Run(at + length, c);
  if (c == CharClass::kNumber) {
    size_t end = at + length;
    for (int n = 1; n < most_digits && s.At(end, &length) == c; ++n) end += length;
    return end;
  }
  size_t next_length = 0;
  const CharClass next = s.At(at + length, &next_length);
  if (next == CharClass::kLetter && !IsNewline(text[at])) {
    return s.Run(at + length + next_length, next);
  }
  size_t symbols = at;
  if (Scanner::IsSymbol(c)) {
    symbols = at + length;
  } else if (text[at] == ' ' && next_length > 0 && Scanner::IsSymbol(next)) {
    symbols = at + 1 + next_length;
  } else {
    return SpacesAndNewlines(s, at);
  }
  size_t end = s.RunOfSymbols(symbols);
  while (end < text.size() && IsNewline(text[end])) ++end;
  return end;
}

class Words : public PretokenizerStep {
 public:
  explicit Words(WordRule rule) : rule_(rule) {}
  void Split(absl::string_view text, PieceSink sink) const override {
    const Scanner scanner(text);
    for (size_t at = 0; at < text.size();) {
      const size_t end = rule_ == WordRule::kGpt2    ? NextGpt2(scanner, at)
                         : rule_ == WordRule::kQwen2 ? NextQwen2(scanner, at, 1)
                                                     : NextQwen2(scanner, at, 3);
      sink(text.substr(at, end - at));
      at = end;
    }
  }

 private:
  const WordRule rule_;
};

class Digits : public PretokenizerStep {
 public:
  explicit Digits(bool individual) : individual_(individual) {}
  void Split(absl::string_view text, PieceSink sink) const override {
    const Scanner scanner(text);
    size_t begin = 0;
    for (size_t at = 0, length = 0; at < text.size(); at += length) {
      if (scanner.At(at, &length) != CharClass::kNumber) continue;
      if (at > begin) sink(text.substr(begin, at - begin));
      if (!individual_) length = scanner.Run(at, CharClass::kNumber) - at;
      sink(text.substr(at, length));
      begin = at + length;
    }
    if (begin < text.size()) sink(text.substr(begin));
  }

 private:
  const bool individual_;
};

}  // namespace

std::unique_ptr<PretokenizerStep> WordStep(WordRule rule) { return std::make_unique<Words>(rule); }
std::unique_ptr<PretokenizerStep> DigitsStep(bool individual) {
  return std::make_unique<Digits>(individual);
}

}  // namespace millrace
