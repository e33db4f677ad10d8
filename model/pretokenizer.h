// Cuts text into the words that BPE encodes one by one: a list of steps, each of which cuts the
// pieces of the one before. Thread-safe (const) after creation.
#ifndef MILLRACE_MODEL_PRETOKENIZER_H_
#define MILLRACE_MODEL_PRETOKENIZER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

using PieceSink = absl::FunctionRef<void(absl::string_view)>;

class PretokenizerStep {
 public:
  virtual ~PretokenizerStep() = default;
  // Hands out the pieces of `text` (well-formed UTF-8) in order, none of them empty. Together they
  // are `text`, but for what SplitBehavior::kRemoved removes.
  virtual void Split(absl::string_view text, PieceSink sink) const = 0;
};

// What becomes of a match of a pattern, between the pieces around it.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

// The words of a family, as its regular expression means them, by a scanner written for it (several
// times faster).
enum class WordRule { kGpt2, kQwen2, kLlama3 };
std::unique_ptr<PretokenizerStep> WordStep(WordRule rule);
// Numeric characters (Unicode N), each by itself or in runs.
std::unique_ptr<PretokenizerStep> DigitsStep(bool individual);
struct SplitOptions {
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // what lies between matches is the match
};
// Matches of a regular expression and what lies between them. Expressions that a WordRule stands
// for become that. INVALID_ARGUMENT when it does not compile.
absl::StatusOr<std::unique_ptr<PretokenizerStep>> RegexStep(const std::string& pattern,
                                                            SplitOptions options);
// The same for a literal string, which is not empty.
std::unique_ptr<PretokenizerStep> LiteralStep(const std::string& literal, SplitOptions options);

class Pretokenizer {
 public:
  void Add(std::unique_ptr<PretokenizerStep> step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }
  void Split(absl::string_view text, PieceSink sink) const { SplitFrom(0, text, sink); }

 private:
  void SplitFrom(size_t step, absl::string_view text, PieceSink sink) const;

  std::vector<std::unique_ptr<PretokenizerStep>> steps_;
};

}  // namespace millrace

#endif  // MILLRACE_MODEL_PRETOKENIZER_H_
