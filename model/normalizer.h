// What a tokenizer does to text before it cuts it into words: Unicode normalisation, a prefix,
// replacements. Thread-safe (const) after creation.
#ifndef MILLRACE_MODEL_NORMALIZER_H_
#define MILLRACE_MODEL_NORMALIZER_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace millrace {

class Normalizer {
 public:
  enum class Kind { kNfc, kNfd, kNfkc, kNfkd, kPrepend, kReplace };
  void AddUnicode(Kind form);
  // `prefix` before every text that is not empty.
  void AddPrepend(std::string prefix);
  // `from` is not empty.
  void AddReplace(std::string from, std::string to);

  bool identity() const { return steps_.empty(); }
  // `text` is well-formed UTF-8. Returns `text` itself when nothing changes, else a view of
  // `*storage`.
  absl::string_view Apply(absl::string_view text, std::string* storage) const;

 private:
  struct Step {
    Kind kind;
    std::string from, to;  // kPrepend uses `to`
  };
  std::vector<Step> steps_;
};

}  // namespace millrace

#endif  // MILLRACE_MODEL_NORMALIZER_H_
