#include "environments/json_answer.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDepth = 64;

absl::string_view WithoutFence(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (!absl::StartsWith(text, "```") || !absl::EndsWith(text, "```") || text.size() < 6)
    return text;
  text = text.substr(3, text.size() - 6);
  if (absl::StartsWith(text, "json")) text.remove_prefix(4);
  return absl::StripAsciiWhitespace(text);
}

}  // namespace

Json ParseJsonAnswer(absl::string_view text) {
  text = WithoutFence(text);
  std::vector<std::set<std::string>> open;  // keys of the objects that are open
  bool bad = false;
  const auto callback = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) bad = true;
    switch (event) {
      case Json::parse_event_t::object_start:
        open.emplace_back();
        break;
      case Json::parse_event_t::object_end:
        if (!open.empty()) open.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!open.empty() && !open.back().insert(parsed.get<std::string>()).second) bad = true;
        break;
      default:
        break;
    }
    return true;
  };
  Json json = Json::parse(text.begin(), text.end(), callback, /*allow_exceptions=*/false);
  return bad ? Json(Json::value_t::discarded) : json;
}

bool SameJson(const Json& a, const Json& b) {
  if (a.is_object() && b.is_object()) {
    if (a.size() != b.size()) return false;
    for (const auto& [key, value] : a.items()) {
      const auto other = b.find(key);
      if (other == b.end() || !SameJson(value, *other)) return false;
    }
    return true;
  }
  if (a.is_array() && b.is_array()) {
    return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), SameJson);
  }
  return a.is_number_integer() == b.is_number_integer() && a == b;
}

double MatchingFields(const Json& got, const Json& wanted) {
  if (!got.is_object() || !wanted.is_object()) return 0;
  const size_t most = std::max(got.size(), wanted.size());
  if (most == 0) return 1;
  size_t same = 0;
  for (const auto& [key, value] : wanted.items()) {
    const auto other = got.find(key);
    same += other != got.end() && SameJson(*other, value) ? 1 : 0;
  }
  return static_cast<double>(same) / static_cast<double>(most);
}

}  // namespace millrace
