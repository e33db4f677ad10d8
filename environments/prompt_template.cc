#include "environments/prompt_template.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace millrace {

absl::StatusOr<PromptTemplate> PromptTemplate::Parse(absl::string_view text) {
  const auto bad = [text](const char* why) {
    return absl::InvalidArgumentError(absl::StrCat("prompt \"", text, "\": ", why));
  };
  PromptTemplate result;
  std::string literal;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c != '{' && c != '}') {
      literal += c;
      continue;
    }
    if (i + 1 < text.size() && text[i + 1] == c) {
      literal += c;
      ++i;
      continue;
    }
    const size_t end = text.find('}', i);
    if (c == '}' || end == absl::string_view::npos) return bad("a brace that stands alone");
    const std::string name(text.substr(i + 1, end - i - 1));
    if (name.empty() || name.find('{') != std::string::npos) return bad("a name is missing in {}");
    auto found = std::find(result.names_.begin(), result.names_.end(), name);
    if (found == result.names_.end()) {
      found = result.names_.insert(result.names_.end(), name);
    }
    result.pieces_.push_back({false, literal, 0});
    result.pieces_.push_back({true, "", static_cast<size_t>(found - result.names_.begin())});
    literal.clear();
    i = end;
  }
  if (result.names_.empty()) return bad("no {column} in it, so all prompts would be the same");
  result.pieces_.push_back({false, literal, 0});
  return result;
}

std::string PromptTemplate::Fill(const std::vector<std::string>& values) const {
  std::string text;
  for (const Piece& piece : pieces_) {
    absl::StrAppend(&text, piece.placeholder ? values[piece.name] : piece.text);
  }
  return text;
}

}  // namespace millrace
