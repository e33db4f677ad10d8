#include "common/config.h"

#include <toml++/toml.h>

#include <cmath>
#include <map>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/config_schema.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

using TextRef = std::string& (*)(RunConfig&);
using IntegerRef = int64_t& (*)(RunConfig&);
using NumberRef = double& (*)(RunConfig&);
using BoolRef = bool& (*)(RunConfig&);
using ListRef = std::vector<std::string>& (*)(RunConfig&);

// Where a field's value came from, as the head of a message: "run.toml:12" or "--set a.b=c".
using Origins = std::map<std::string, std::string>;

// Fills a RunConfig from a file and overrides, and collects every issue on the way.
class Parser {
 public:
  explicit Parser(std::string file_name) : file_(std::move(file_name)) {}

  void ReadFileText(const std::string& text);
  void ReadOverride(const std::string& override_text);
  absl::StatusOr<RunConfig> Finish();

 private:
  std::string At(const toml::node& node) const {
    return absl::StrCat(file_, ":", node.source().begin.line);
  }
  template <typename... Args>
  void Issue(const std::string& origin, const Args&... args) {
    issues_.push_back(absl::StrCat(origin, ": ", args...));
  }
  void ReadSection(const std::string& section, const toml::table& table);
  void ReadValue(const ConfigField& field, const toml::node& node);
  static bool ReadList(const toml::node& node, std::vector<std::string>* list);
  void UnknownField(const std::string& origin, const std::string& name);
  // Sets `field` from the text after '='; false when it is of another type.
  bool SetFromText(const ConfigField& field, absl::string_view text);

  const std::string file_;
  RunConfig config_;
  Origins origins_;
  std::vector<std::string> issues_;
};

std::string ListFields(const std::string& section) {
  std::vector<std::string> names;
  for (const ConfigField& field : ConfigSchema()) {
    if (field.section == section) names.push_back(field.name);
  }
  return absl::StrJoin(names, ", ");
}

void Parser::UnknownField(const std::string& origin, const std::string& name) {
  const std::string closest = ClosestConfigName(name);
  const std::string section = name.substr(0, name.find('.'));
  const std::string fields = ListFields(section);
  if (!closest.empty()) {
    Issue(origin, name, ": unknown field; did you mean ", closest, "?");
  } else if (!fields.empty()) {
    Issue(origin, name, ": unknown field; valid in [", section, "]: ", fields);
  } else {
    Issue(origin, name, ": unknown section; valid: ", absl::StrJoin(ConfigSections(), ", "));
  }
}

void Parser::ReadFileText(const std::string& text) {
  toml::table table;
  try {
    table = toml::parse(text, file_);
  } catch (const toml::parse_error& error) {
    Issue(absl::StrCat(file_, ":", error.source().begin.line),
          "not valid TOML: ", std::string(error.description()));
    return;
  }
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    if (ListFields(name).empty()) {
      std::string closest;
      for (const std::string& section : ConfigSections()) {
        if (EditDistance(section, name) <= 2) closest = section;
      }
      // A field without its section's header is the commoner slip.
      if (!node.is_table()) closest = ClosestConfigName(name);
      Issue(At(node), name, node.is_table() ? ": unknown section" : ": field outside a section",
            closest.empty() ? absl::StrCat("; valid: ", absl::StrJoin(ConfigSections(), ", "))
                            : absl::StrCat("; did you mean ", closest, "?"));
    } else if (const toml::table* section = node.as_table()) {
      ReadSection(name, *section);
    } else {
      Issue(At(node), name, ": must be a section; valid: [", name, "] with ", ListFields(name));
    }
  }
}

void Parser::ReadSection(const std::string& section, const toml::table& table) {
  for (const auto& [key, node] : table) {
    const std::string name(key.str());
    if (const ConfigField* field = FindConfigField(section, name)) {
      ReadValue(*field, node);
    } else {
      UnknownField(At(node), absl::StrCat(section, ".", name));
    }
  }
}

bool Parser::ReadList(const toml::node& node, std::vector<std::string>* list) {
  const toml::array* array = node.as_array();
  if (array == nullptr) return false;
  list->clear();
  for (const toml::node& item : *array) {
    if (!item.is_string()) return false;
    list->push_back(item.as_string()->get());
  }
  return true;
}

void Parser::ReadValue(const ConfigField& field, const toml::node& node) {
  origins_[field.full_name()] = At(node);
  bool ok = false;
  if (const auto* text = std::get_if<TextRef>(&field.ref)) {
    if ((ok = node.is_string())) (*text)(config_) = node.as_string()->get();
  } else if (const auto* integer = std::get_if<IntegerRef>(&field.ref)) {
    if ((ok = node.is_integer())) (*integer)(config_) = node.as_integer()->get();
  } else if (const auto* number = std::get_if<NumberRef>(&field.ref)) {
    if ((ok = node.is_number())) (*number)(config_) = *node.value<double>();
  } else if (const auto* list = std::get_if<ListRef>(&field.ref)) {
    ok = ReadList(node, &(*list)(config_));
  } else if ((ok = node.is_boolean())) {
    std::get<BoolRef>(field.ref)(config_) = node.as_boolean()->get();
  }
  if (!ok) {
    std::ostringstream type;
    type << node.type();
    Issue(At(node), field.full_name(), ": is of type ", type.str(),
          "; valid: ", DescribeValid(field));
  }
}

bool Parser::SetFromText(const ConfigField& field, absl::string_view text) {
  if (const auto* ref = std::get_if<TextRef>(&field.ref)) {
    // Quotes are for the shell; --set a.b="x" and a.b=x are the same.
    if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
      text = text.substr(1, text.size() - 2);
    }
    (*ref)(config_) = std::string(text);
    return true;
  }
  if (const auto* ref = std::get_if<IntegerRef>(&field.ref)) {
    return absl::SimpleAtoi(text, &(*ref)(config_));
  }
  if (const auto* ref = std::get_if<NumberRef>(&field.ref)) {
    return absl::SimpleAtod(text, &(*ref)(config_));
  }
  if (const auto* ref = std::get_if<ListRef>(&field.ref)) {
    (*ref)(config_) = absl::StrSplit(text, ',', absl::SkipWhitespace());
    return true;
  }
  if (text != "true" && text != "false") return false;
  std::get<BoolRef>(field.ref)(config_) = text == "true";
  return true;
}

void Parser::ReadOverride(const std::string& override_text) {
  const std::string origin = absl::StrCat("--set ", override_text);
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(override_text, absl::MaxSplits('=', 1));
  const std::pair<std::string, std::string> names =
      absl::StrSplit(parts.first, absl::MaxSplits('.', 1));
  if (!absl::StrContains(override_text, '=') || names.second.empty()) {
    Issue(origin, "not an override; valid: --set section.field=value");
    return;
  }
  const ConfigField* field = FindConfigField(names.first, names.second);
  if (field == nullptr) {
    UnknownField(origin, parts.first);
    return;
  }
  origins_[parts.first] = origin;
  // SimpleAtoi writes 0 on failure, which the range check would then report a second time.
  const RunConfig before = config_;
  if (!SetFromText(*field, parts.second)) {
    config_ = before;
    Issue(origin, parts.first, ": \"", parts.second,
          "\" is not valid; valid: ", DescribeValid(*field));
  } else if (field->section == "data") {
    config_.data.overridden.push_back(field->name);
  }
}

absl::StatusOr<RunConfig> Parser::Finish() {
  for (const ConfigIssue& issue : CheckConfig(config_)) {
    const auto origin = origins_.find(issue.field);
    Issue(origin == origins_.end() ? file_ : origin->second, issue.field, ": ", issue.message);
  }
  if (!issues_.empty()) return absl::InvalidArgumentError(absl::StrJoin(issues_, "\n"));
  return std::move(config_);
}

}  // namespace

std::string RolloutDevice(const RunConfig& config, const std::string& name) {
  const std::vector<std::string>& devices = config.rollout.devices;
  if (devices.empty()) return config.model.device;
  uint64_t number = 0;
  const size_t dash = name.rfind('-');
  if (dash == std::string::npos || !absl::SimpleAtoi(name.substr(dash + 1), &number)) number = 0;
  return devices[number % devices.size()];
}

absl::StatusOr<RunConfig> ParseConfig(const std::string& toml_text, const std::string& file_name,
                                      absl::Span<const std::string> overrides) {
  Parser parser(file_name);
  parser.ReadFileText(toml_text);
  for (const std::string& text : overrides) parser.ReadOverride(text);
  return parser.Finish();
}

absl::StatusOr<RunConfig> LoadConfig(const std::string& path,
                                     absl::Span<const std::string> overrides) {
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseConfig(text, path, overrides);
}

}  // namespace millrace
