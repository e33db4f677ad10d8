// What to do about fields of a config.json that the reader of model/model_config.h makes no use of:
// transformers passes over them in silence, and a model that computes something else results.
#ifndef MILLRACE_MODEL_UNKNOWN_FIELDS_H_
#define MILLRACE_MODEL_UNKNOWN_FIELDS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/config_fields.h"

namespace millrace {

// UNIMPLEMENTED names the first field that changes what is computed:
// - one of a related architecture, unless it has the value that changes nothing;
// - any other unknown one whose name speaks of a part of a model (attention, norm, scale, experts,
//   ...), unless it is off: null, false, 0 or empty.
// Returned are the names of the unknown fields that are left, sorted; they have no effect. Fields
// about training, generation, files and tools, which every published config holds, are known.
absl::StatusOr<std::vector<std::string>> CheckUnknownFields(const ConfigFields& fields);

// The same for the fields of "rope_scaling" or "rope_parameters", of which every unknown one that
// is not null is refused. `inner`: that object; errors of `fields` name the file.
absl::Status CheckRopeFields(const ConfigFields& fields, const nlohmann::json& inner);

}  // namespace millrace

#endif  // MILLRACE_MODEL_UNKNOWN_FIELDS_H_
