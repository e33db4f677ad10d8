// The table of config fields: the one place that knows names, types, ranges and help. Thread-safe.
#ifndef MILLRACE_COMMON_CONFIG_SCHEMA_H_
#define MILLRACE_COMMON_CONFIG_SCHEMA_H_

#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/config.h"

namespace millrace {

// Where a field lives in a RunConfig; the alternative held is the field's type.
using ConfigRef =
    std::variant<std::string& (*)(RunConfig&), int64_t& (*)(RunConfig&), double& (*)(RunConfig&),
                 bool& (*)(RunConfig&), std::vector<std::string>& (*)(RunConfig&)>;

struct ConfigField {
  std::string section;
  std::string name;
  ConfigRef ref;
  std::string help;
  // Numbers: the valid range, both ends included unless above_low.
  double low = 0;
  double high = 0;
  bool above_low = false;            // `low` itself is not valid
  std::vector<std::string> choices;  // strings: valid values; empty = any

  std::string full_name() const { return section + "." + name; }
};

const std::vector<ConfigField>& ConfigSchema();
std::vector<std::string> ConfigSections();  // in order
// nullptr when there is none.
const ConfigField* FindConfigField(absl::string_view section, absl::string_view name);

// "integer, 1 to 64", "one of cpu, cuda", ...
std::string DescribeValid(const ConfigField& field);
// TOML spelling of the field's value in `config`; numbers read back to the same bits.
std::string ConfigValueText(const ConfigField& field, const RunConfig& config);
// The field of the schema whose full name is closest to `name` (Levenshtein); empty when none is
// near.
std::string ClosestConfigName(absl::string_view name);
// Levenshtein distance.
int EditDistance(absl::string_view a, absl::string_view b);

// docs/config.md: every field with type, default, valid values and help.
std::string ConfigDocsMarkdown();

}  // namespace millrace

#endif  // MILLRACE_COMMON_CONFIG_SCHEMA_H_
