// Reading JSON that somebody else wrote.
#ifndef MILLRACE_MODEL_JSON_CHECKS_H_
#define MILLRACE_MODEL_JSON_CHECKS_H_

#include <algorithm>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace millrace {

// Copying and printing a JSON value recurse; deeper ones are refused before they are parsed.
inline constexpr int kMostJsonNesting = 200;

// Deepest nesting of brackets outside strings.
inline int JsonNesting(absl::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

// INVALID_ARGUMENT naming `what` when the text is no JSON (UTF-8 included) or nested too deeply.
template <typename Json>
absl::StatusOr<Json> ParseForeignJson(absl::string_view text, absl::string_view what) {
  if (const int nesting = JsonNesting(text); nesting > kMostJsonNesting) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": JSON nested ", nesting, " deep (at most ", kMostJsonNesting, ")"));
  }
  Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": not JSON, or not UTF-8"));
  }
  return json;
}

// The start of a value, for messages.
template <typename Json>
std::string ShownJson(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 60);
}

}  // namespace millrace

#endif  // MILLRACE_MODEL_JSON_CHECKS_H_
