#include "model/config_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace millrace {

using Json = nlohmann::json;

const Json* ConfigFields::Find(const char* name) const {
  const auto it = json_.find(name);
  return it == json_.end() || it->is_null() ? nullptr : &*it;
}

absl::Status ConfigFields::Bad(const std::string& what) const {
  return absl::InvalidArgumentError(absl::StrCat(file_, ": ", what));
}

absl::Status ConfigFields::Unsupported(const std::string& what) const {
  return absl::UnimplementedError(absl::StrCat(file_, ": ", what, " is not supported"));
}

absl::Status ConfigFields::Read(const char* name, std::optional<int64_t> fallback,
                                int64_t* out) const {
  const Json* value = Find(name);
  if (value == nullptr) {
    if (!fallback) return Bad(absl::StrCat("field \"", name, "\" is missing"));
    *out = *fallback;
    return absl::OkStatus();
  }
  if (!value->is_number_integer() || *value > kMaxDimension || *value < 1) {
    return Bad(absl::StrCat("field \"", name, "\" is ", value->dump(),
                            ", expected an integer from 1 to ", kMaxDimension));
  }
  *out = value->get<int64_t>();
  return absl::OkStatus();
}

absl::Status ConfigFields::Read(const char* name, bool fallback, bool* out) const {
  const Json* value = Find(name);
  if (value != nullptr && !value->is_boolean()) {
    return Bad(absl::StrCat("field \"", name, "\" is ", value->dump(), ", expected a boolean"));
  }
  *out = value == nullptr ? fallback : value->get<bool>();
  return absl::OkStatus();
}

absl::Status ConfigFields::Read(const char* name, std::optional<double> fallback,
                                double* out) const {
  const Json* value = Find(name);
  if (value == nullptr) {
    if (!fallback) return Bad(absl::StrCat("field \"", name, "\" is missing"));
    *out = *fallback;
    return absl::OkStatus();
  }
  if (!value->is_number() || !(value->get<double>() > 0) || !std::isfinite(value->get<double>())) {
    return Bad(
        absl::StrCat("field \"", name, "\" is ", value->dump(), ", expected a number above 0"));
  }
  *out = value->get<double>();
  return absl::OkStatus();
}

absl::Status ConfigFields::ReadIds(const char* name, std::vector<int32_t>* out) const {
  const Json* value = Find(name);
  if (value == nullptr) return absl::OkStatus();
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<int32_t>::max()) {
      return Bad(absl::StrCat("field \"", name, "\" holds ", id.dump(),
                              ", expected token ids that are not negative"));
    }
    if (std::find(out->begin(), out->end(), id.get<int32_t>()) == out->end()) {
      out->push_back(id.get<int32_t>());
    }
  }
  return absl::OkStatus();
}

absl::Status ConfigFields::ReadId(const char* name, int32_t* out) const {
  const Json* value = Find(name);
  if (value == nullptr || *value == -1) return absl::OkStatus();
  std::vector<int32_t> ids;
  MR_RETURN_IF_ERROR(ReadIds(name, &ids));
  if (!ids.empty()) *out = ids[0];
  return absl::OkStatus();
}

absl::Status ConfigFields::Read(const char* name, std::string* out) const {
  const Json* value = Find(name);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_string()) {
    return Bad(absl::StrCat("field \"", name, "\" is ", value->dump(), ", expected a string"));
  }
  *out = value->get<std::string>();
  return absl::OkStatus();
}

absl::StatusOr<Json> ParseJsonObject(const std::string& text, const std::string& file_name) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(file_name, ": not a JSON object"));
  }
  return json;
}

}  // namespace millrace
