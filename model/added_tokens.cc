#include "model/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "model/byte_level.h"
#include "model/unicode_classes.h"

namespace millrace {
namespace {

// Begin of the character that ends at `end`.
size_t CharacterBefore(absl::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

uint32_t CodeAt(absl::string_view text, size_t at) {
  const int length = Utf8CharacterLength(text.substr(at));
  return length == 0 ? 0xfffd : CodePoint(text.substr(at), length);
}

// A word character (\w): letter, mark, digit, connector or joiner.
bool IsWord(uint32_t code) {
  const utf8proc_category_t c = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC ||
         CharClasses::Get().Of(code) == CharClass::kLetter || code == 0x200c || code == 0x200d;
}

bool WordAround(absl::string_view text, TextRange range) {
  if (range.begin > 0 && IsWord(CodeAt(text, CharacterBefore(text, range.begin)))) {
    return true;
  }
  return range.end < text.size() && IsWord(CodeAt(text, range.end));
}

TextRange WithSpaces(absl::string_view text, size_t done, const AddedToken& token,
                     TextRange range) {
  const CharClasses& classes = CharClasses::Get();
  while (token.lstrip && range.begin > done) {
    const size_t before = CharacterBefore(text, range.begin);
    if (!classes.IsSpace(CodeAt(text, before))) break;
    range.begin = before;
  }
  while (token.rstrip && range.end < text.size() && classes.IsSpace(CodeAt(text, range.end))) {
    range.end += std::max(1, Utf8CharacterLength(text.substr(range.end)));
  }
  return range;
}

}  // namespace

void AddedTokenFinder::Add(const AddedToken& token, std::string pattern) {
  by_byte_[static_cast<uint8_t>(pattern[0])].push_back(tokens_.size());
  tokens_.push_back({token, std::move(pattern)});
}

void AddedTokenFinder::Finish() {
  for (auto& list : by_byte_) {
    std::stable_sort(list.begin(), list.end(), [this](size_t a, size_t b) {
      return tokens_[a].text.size() > tokens_[b].text.size();
    });
  }
}

const AddedTokenFinder::Pattern* AddedTokenFinder::Match(absl::string_view text, size_t at,
                                                         Allowed allowed) const {
  for (size_t index : by_byte_[static_cast<uint8_t>(text[at])]) {
    const Pattern& pattern = tokens_[index];
    if (!absl::StartsWith(text.substr(at), pattern.text)) continue;
    const TextRange range{at, at + pattern.text.size()};
    if (pattern.token.special && !allowed(range)) continue;
    if (pattern.token.single_word && WordAround(text, range)) continue;
    return &pattern;
  }
  return nullptr;
}

void AddedTokenFinder::Cut(absl::string_view text, Allowed allowed, Sink sink) const {
  size_t done = 0;
  for (size_t at = 0; !tokens_.empty() && at < text.size();) {
    const Pattern* pattern = nullptr;
    if (!by_byte_[static_cast<uint8_t>(text[at])].empty()) pattern = Match(text, at, allowed);
    if (pattern == nullptr) {
      ++at;
      continue;
    }
    const TextRange range = WithSpaces(text, done, pattern->token, {at, at + pattern->text.size()});
    if (range.begin > done) sink({done, range.begin}, nullptr);
    sink(range, &pattern->token);
    done = at = range.end;
  }
  if (done < text.size()) sink({done, text.size()}, nullptr);
}

}  // namespace millrace
