// Typed access to the fields of a JSON config file. Internal to the readers of config.json and
// adapter_config.json. Errors name the file and the field. No ownership of the JSON.
#ifndef MILLRACE_MODEL_CONFIG_FIELDS_H_
#define MILLRACE_MODEL_CONFIG_FIELDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace millrace {

class ConfigFields {
 public:
  using Json = nlohmann::json;
  static constexpr int64_t kMaxDimension = int64_t{1} << 31;

  ConfigFields(const Json& json, std::string file) : json_(json), file_(std::move(file)) {}

  // The value, or null when the field is absent or null.
  const Json* Find(const char* name) const;
  bool Has(const char* name) const { return json_.contains(name); }
  const Json& json() const { return json_; }                // all of them
  absl::Status Bad(const std::string& what) const;          // INVALID_ARGUMENT
  absl::Status Unsupported(const std::string& what) const;  // UNIMPLEMENTED
  // An integer from 1 to kMaxDimension; nullopt = the field must be there.
  absl::Status Read(const char* name, std::optional<int64_t> fallback, int64_t* out) const;
  absl::Status Read(const char* name, bool fallback, bool* out) const;
  // A number above 0; nullopt = the field must be there.
  absl::Status Read(const char* name, std::optional<double> fallback, double* out) const;
  // Token ids: a number, a list of numbers, or nothing. Adds those that are new.
  absl::Status ReadIds(const char* name, std::vector<int32_t>* out) const;
  // One token id; -1, which some published configs have for "none", leaves `out` alone.
  absl::Status ReadId(const char* name, int32_t* out) const;
  absl::Status Read(const char* name, std::string* out) const;  // absent = unchanged

 private:
  const Json& json_;
  std::string file_;
};

// INVALID_ARGUMENT names the file when `text` is not a JSON object.
absl::StatusOr<nlohmann::json> ParseJsonObject(const std::string& text,
                                               const std::string& file_name);

}  // namespace millrace

#endif  // MILLRACE_MODEL_CONFIG_FIELDS_H_
