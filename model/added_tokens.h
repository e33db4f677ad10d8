// Added tokens: texts that are one token whatever the words around them are. Thread-safe (const)
// after creation.
#ifndef MILLRACE_MODEL_ADDED_TOKENS_H_
#define MILLRACE_MODEL_ADDED_TOKENS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace millrace {

struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = false;
  bool normalized = false;   // looked for in normalised text
  bool single_word = false;  // only where no word character is beside it
  bool lstrip = false;       // takes white space before it along
  bool rstrip = false;       // takes white space behind it along
};

// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0, end = 0;
};

// Finds tokens in text: the leftmost, and the longest of those that begin there.
class AddedTokenFinder {
 public:
  // `pattern` is the token's text as it stands in the texts searched. Not empty.
  void Add(const AddedToken& token, std::string pattern);
  // Sorts; before the first Find.
  void Finish();
  bool empty() const { return tokens_.empty(); }

  // Whether a special token may be recognised at these bytes.
  using Allowed = absl::FunctionRef<bool(TextRange)>;
  // `token` is null for what lies between tokens, which is not empty.
  using Sink = absl::FunctionRef<void(TextRange, const AddedToken* token)>;
  // Cuts `text` (well-formed UTF-8) into tokens and what lies between them.
  void Cut(absl::string_view text, Allowed allowed, Sink sink) const;

 private:
  struct Pattern {
    AddedToken token;
    std::string text;
  };
  const Pattern* Match(absl::string_view text, size_t at, Allowed allowed) const;

  std::vector<Pattern> tokens_;
  // Indices by first byte, longest first.
  std::array<std::vector<size_t>, 256> by_byte_;
};

}  // namespace millrace

#endif  // MILLRACE_MODEL_ADDED_TOKENS_H_
