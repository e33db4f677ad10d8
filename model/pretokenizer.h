// Cuts text into the words that BPE encodes one by one: a list of steps, each of which cuts the
// pieces of the one before. Thread-safe (const) after creation.
#ifndef MILLRACE_MODEL_PRETOKENIZER_H_
#define MILLRACE_MODEL_PRETOKENIZER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

class PretokenizerStep {
 public:
  virtual ~PretokenizerStep() = default;
  // Appends the pieces of `text` (well-formed UTF-8) in order; together they are `text`.
  virtual void Split(absl::string_view text, std::vector<absl::string_view>* pieces) const = 0;
};

// Every numeric character (Unicode N) by itself.
std::unique_ptr<PretokenizerStep> DigitsStep();
// The words of GPT-2's regular expression.
absl::StatusOr<std::unique_ptr<PretokenizerStep>> Gpt2Step();
// Matches of `pattern` and what lies between them. INVALID_ARGUMENT when it does not compile.
absl::StatusOr<std::unique_ptr<PretokenizerStep>> RegexStep(const std::string& pattern);

class Pretokenizer {
 public:
  void Add(std::unique_ptr<PretokenizerStep> step) { steps_.push_back(std::move(step)); }
  std::vector<absl::string_view> Split(absl::string_view text) const;

 private:
  std::vector<std::unique_ptr<PretokenizerStep>> steps_;
};

}  // namespace millrace

#endif  // MILLRACE_MODEL_PRETOKENIZER_H_
