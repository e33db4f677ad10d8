// Names, spellings and descriptions made from the table of fields.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/config_schema.h"

namespace millrace {
namespace {

std::string NumberText(double value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;  // shortest that reads back
  std::string result(text, end);
  // TOML takes "1" for an integer.
  if (result.find_first_of(".en") == std::string::npos) result += ".0";
  return result;
}

std::string RangeEnd(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return absl::StrFormat("%.0f", value);
  if (value == std::floor(value)) return "2^53";
  return absl::StrFormat("%.10g", value);
}

std::string Quoted(absl::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&result, "\\", std::string(1, c));
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(&result, "\\u%04X", static_cast<int>(static_cast<unsigned char>(c)));
    } else {
      result += c;
    }
  }
  return result + "\"";
}

std::string TypeName(const ConfigField& field) {
  static const char* const kNames[] = {"string", "integer", "number", "true/false",
                                       "list of strings"};
  return kNames[field.ref.index()];
}

}  // namespace

std::vector<std::string> ConfigSections() {
  std::vector<std::string> sections;
  for (const ConfigField& field : ConfigSchema()) {
    if (sections.empty() || sections.back() != field.section) sections.push_back(field.section);
  }
  return sections;
}

const ConfigField* FindConfigField(absl::string_view section, absl::string_view name) {
  for (const ConfigField& field : ConfigSchema()) {
    if (field.section == section && field.name == name) return &field;
  }
  return nullptr;
}

std::string DescribeValid(const ConfigField& field) {
  if (!field.choices.empty()) return absl::StrJoin(field.choices, ", ");
  if (std::holds_alternative<std::string& (*)(RunConfig&)>(field.ref)) return "a string";
  if (std::holds_alternative<bool& (*)(RunConfig&)>(field.ref)) return "true, false";
  if (std::holds_alternative<std::vector<std::string>& (*)(RunConfig&)>(field.ref)) {
    return "strings in brackets; --set: separated by commas";
  }
  const bool integer = std::holds_alternative<int64_t& (*)(RunConfig&)>(field.ref);
  if (field.above_low) {
    return absl::StrCat("a number above ", RangeEnd(field.low), ", at most ", RangeEnd(field.high));
  }
  return absl::StrCat(integer ? "an integer from " : "a number from ", RangeEnd(field.low), " to ",
                      RangeEnd(field.high));
}

std::string ConfigValueText(const ConfigField& field, const RunConfig& config) {
  RunConfig copy = config;  // refs are to mutable fields
  if (const auto* text = std::get_if<std::string& (*)(RunConfig&)>(&field.ref)) {
    return Quoted((*text)(copy));
  }
  if (const auto* integer = std::get_if<int64_t& (*)(RunConfig&)>(&field.ref)) {
    return absl::StrCat((*integer)(copy));
  }
  if (const auto* number = std::get_if<double& (*)(RunConfig&)>(&field.ref)) {
    return NumberText((*number)(copy));
  }
  if (const auto* list = std::get_if<std::vector<std::string>& (*)(RunConfig&)>(&field.ref)) {
    std::vector<std::string> quoted;
    for (const std::string& text : (*list)(copy)) quoted.push_back(Quoted(text));
    return absl::StrCat("[", absl::StrJoin(quoted, ", "), "]");
  }
  return std::get<bool& (*)(RunConfig&)>(field.ref)(copy) ? "true" : "false";
}

int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string ClosestConfigName(absl::string_view name) {
  std::string best;
  int best_distance = 0;
  const size_t dot = name.find('.');
  const absl::string_view leaf = dot == absl::string_view::npos ? name : name.substr(dot + 1);
  for (const ConfigField& field : ConfigSchema()) {
    // The right field in the wrong section is as near as one letter.
    const int distance =
        field.name == leaf ? 1 : EditDistance(name, field.section + "." + field.name);
    if (best.empty() || distance < best_distance) {
      best = field.full_name();
      best_distance = distance;
    }
  }
  return best_distance <= std::max<int>(2, static_cast<int>(leaf.size()) / 3) ? best : "";
}

std::string PrintConfig(const RunConfig& config) {
  std::string text;
  std::string section;
  for (const ConfigField& field : ConfigSchema()) {
    if (field.section != section) {
      if (!section.empty()) text += "\n";
      section = field.section;
      absl::StrAppend(&text, "[", section, "]\n");
    }
    absl::StrAppend(&text, "# ", field.help, " Valid: ", DescribeValid(field), ".\n", field.name,
                    " = ", ConfigValueText(field, config), "\n");
  }
  return text;
}

std::string ConfigDocsMarkdown() {
  const RunConfig defaults;
  std::string text =
      "# Configuration\n\nMade by `millrace config docs`. Every process of a run reads the same "
      "TOML file;\n`--set section.field=value` overrides a field, `millrace config check FILE` "
      "checks a file,\n`millrace config print FILE` prints all fields.\n";
  std::string section;
  for (const ConfigField& field : ConfigSchema()) {
    if (field.section != section) {
      section = field.section;
      absl::StrAppend(&text, "\n## [", section,
                      "]\n\n| field | type | default | valid | meaning |\n|---|---|---|---|---|\n");
    }
    absl::StrAppend(&text, "| `", field.name, "` | ", TypeName(field), " | `",
                    ConfigValueText(field, defaults), "` | ", DescribeValid(field), " | ",
                    absl::StrReplaceAll(field.help, {{"|", "\\|"}}), " |\n");
  }
  return text;
}

}  // namespace millrace
