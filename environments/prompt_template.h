// "{question}\nAnswer with a number." with columns for placeholders. Thread-safe (const).
#ifndef MILLRACE_ENVIRONMENTS_PROMPT_TEMPLATE_H_
#define MILLRACE_ENVIRONMENTS_PROMPT_TEMPLATE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

class PromptTemplate {
 public:
  // {name} is a placeholder, {{ and }} are braces. INVALID_ARGUMENT: a brace that stands alone, an
  // empty name, or no placeholder at all.
  static absl::StatusOr<PromptTemplate> Parse(absl::string_view text);
  // Names of the placeholders, once each, in order.
  const std::vector<std::string>& names() const { return names_; }
  // `values` are those of names().
  std::string Fill(const std::vector<std::string>& values) const;

 private:
  struct Piece {
    bool placeholder = false;
    std::string text;  // literal
    size_t name = 0;   // index into names_
  };
  std::vector<Piece> pieces_;
  std::vector<std::string> names_;
};

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_PROMPT_TEMPLATE_H_
