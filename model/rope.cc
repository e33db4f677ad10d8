#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/unknown_fields.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr RopeType kTypes[] = {RopeType::kDefault, RopeType::kLinear, RopeType::kLlama3,
                               RopeType::kYarn};
constexpr char kOriginal[] = "original_max_position_embeddings";
constexpr double kTwoPi = 2 * 3.14159265358979323846;

absl::StatusOr<RopeType> ReadType(const ConfigFields& fields, const Json& rope, const char* name) {
  RopeType type = RopeType::kDefault;
  // "type" is the older spelling; "rope_type" counts when both are there.
  for (const char* key : {"type", "rope_type"}) {
    const auto it = rope.find(key);
    if (it == rope.end() || it->is_null()) continue;
    const auto known = std::find_if(std::begin(kTypes), std::end(kTypes),
                                    [&](RopeType t) { return *it == RopeTypeName(t); });
    if (known == std::end(kTypes)) {
      return fields.Unsupported(absl::StrCat("rope scaling ", it->dump(), " (\"", name,
                                             "\"; of default, linear, llama3, yarn)"));
    }
    type = *known;
  }
  return type;
}

// 0.1 m ln(s) + 1 (YaRN, equation 22).
double YarnScale(double factor, double m) {
  return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1;
}

absl::Status ReadYarn(const ConfigFields& inner, RopeConfig* rope) {
  MR_RETURN_IF_ERROR(inner.Read("beta_fast", 32.0, &rope->beta_fast));
  MR_RETURN_IF_ERROR(inner.Read("beta_slow", 1.0, &rope->beta_slow));
  MR_RETURN_IF_ERROR(inner.Read("truncate", true, &rope->truncate));
  double factor = YarnScale(rope->factor, 1);
  // DeepSeek's pair of fields.
  if (inner.Find("mscale") != nullptr && inner.Find("mscale_all_dim") != nullptr) {
    double m = 1, all = 1;
    MR_RETURN_IF_ERROR(inner.Read("mscale", 1.0, &m));
    MR_RETURN_IF_ERROR(inner.Read("mscale_all_dim", 1.0, &all));
    factor = YarnScale(rope->factor, m) / YarnScale(rope->factor, all);
  }
  return inner.Read("attention_factor", factor, &rope->attention_factor);
}

absl::Status ReadScaling(const ConfigFields& inner, int64_t max_position, RopeConfig* rope) {
  if (rope->type == RopeType::kDefault) return absl::OkStatus();
  const std::optional<double> required;
  MR_RETURN_IF_ERROR(inner.Read("factor", required, &rope->factor));
  if (rope->type == RopeType::kLinear) return absl::OkStatus();
  MR_RETURN_IF_ERROR(inner.Read(kOriginal, max_position, &rope->original_max_position));
  if (rope->type == RopeType::kYarn) return ReadYarn(inner, rope);
  MR_RETURN_IF_ERROR(inner.Read("low_freq_factor", required, &rope->low_freq_factor));
  return inner.Read("high_freq_factor", required, &rope->high_freq_factor);
}

absl::Status ReadWholeRotation(const ConfigFields& fields) {
  double fraction = 1;
  MR_RETURN_IF_ERROR(fields.Read("partial_rotary_factor", 1.0, &fraction));
  if (fraction == 1) return absl::OkStatus();
  return fields.Unsupported("\"partial_rotary_factor\" other than 1");
}

// An error about a field of the inner object, with the file's name before the object's.
absl::Status InFile(const ConfigFields& fields, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), fields.Bad(std::string(status.message())).message());
}

}  // namespace

const char* RopeTypeName(RopeType type) {
  switch (type) {
    case RopeType::kLinear:
      return "linear";
    case RopeType::kLlama3:
      return "llama3";
    case RopeType::kYarn:
      return "yarn";
    default:
      return "default";
  }
}

absl::StatusOr<RopeConfig> ReadRopeConfig(const ConfigFields& fields, int64_t max_position) {
  RopeConfig rope;
  MR_RETURN_IF_ERROR(fields.Read("rope_theta", 10000.0, &rope.theta));
  MR_RETURN_IF_ERROR(ReadWholeRotation(fields));
  std::optional<RopeType> first;
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    const Json* json = fields.Find(name);
    if (json == nullptr) continue;
    if (!json->is_object()) {
      return fields.Bad(absl::StrCat("field \"", name, "\" is not an object"));
    }
    for (const auto& [key, value] : json->items()) {
      if (value.is_object()) {
        return fields.Unsupported(
            absl::StrCat("a rope of its own for layers \"", key, "\" (\"", name, "\")"));
      }
    }
    const ConfigFields inner(*json, absl::StrCat("\"", name, "\""));
    MR_RETURN_IF_ERROR(InFile(fields, ReadWholeRotation(inner)));
    MR_ASSIGN_OR_RETURN(rope.type, ReadType(fields, *json, name));
    MR_RETURN_IF_ERROR(CheckRopeFields(fields, *json));
    if (first && *first != rope.type) {
      return fields.Bad(absl::StrCat("\"rope_parameters\" say ", RopeTypeName(*first),
                                     ", \"rope_scaling\" says ", RopeTypeName(rope.type)));
    }
    first = rope.type;
    MR_RETURN_IF_ERROR(InFile(fields, ReadScaling(inner, max_position, &rope)));
    if (rope.original_max_position > 0) {
      // A field of the whole config goes before the one of the rope's own, as in transformers.
      MR_RETURN_IF_ERROR(
          fields.Read(kOriginal, rope.original_max_position, &rope.original_max_position));
    }
    if (inner.Find("rope_theta") == nullptr) continue;
    double theta = 0;
    MR_RETURN_IF_ERROR(InFile(fields, inner.Read("rope_theta", 10000.0, &theta)));
    if (fields.Find("rope_theta") != nullptr && theta != rope.theta) {
      return fields.Bad(
          absl::StrCat("\"rope_theta\" is ", rope.theta, " but \"", name, "\" says ", theta));
    }
    rope.theta = theta;
  }
  return rope;
}

Json RopeConfigToJson(const RopeConfig& rope) {
  Json json = {{"rope_theta", rope.theta}, {"rope_type", RopeTypeName(rope.type)}};
  if (rope.type == RopeType::kDefault) return json;
  json["factor"] = rope.factor;
  if (rope.type == RopeType::kLinear) return json;
  json["original_max_position_embeddings"] = rope.original_max_position;
  if (rope.type == RopeType::kLlama3) {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
    return json;
  }
  json["beta_fast"] = rope.beta_fast;
  json["beta_slow"] = rope.beta_slow;
  json["truncate"] = rope.truncate;
  json["attention_factor"] = rope.attention_factor;
  return json;
}

absl::Status ValidateRopeConfig(const RopeConfig& rope) {
  const auto bad = [&](const char* field, double value, const char* wanted) {
    return absl::InvalidArgumentError(absl::StrCat("rope ", RopeTypeName(rope.type), ": \"", field,
                                                   "\" is ", value, ", expected ", wanted));
  };
  if (!(rope.theta > 1)) return bad("rope_theta", rope.theta, "a number above 1");
  if (rope.type == RopeType::kDefault) return absl::OkStatus();
  if (!(rope.factor >= 1)) return bad("factor", rope.factor, "a number of at least 1");
  if (rope.type == RopeType::kLinear) return absl::OkStatus();
  if (rope.original_max_position < 1) {
    return bad("original_max_position_embeddings", static_cast<double>(rope.original_max_position),
               "a positive integer");
  }
  if (rope.type == RopeType::kLlama3 && !(rope.high_freq_factor > rope.low_freq_factor)) {
    return bad("high_freq_factor", rope.high_freq_factor, "more than \"low_freq_factor\"");
  }
  if (rope.type == RopeType::kYarn && !(rope.beta_fast >= rope.beta_slow)) {
    return bad("beta_fast", rope.beta_fast, "at least \"beta_slow\"");
  }
  return absl::OkStatus();
}

std::vector<double> RopeFrequencies(const RopeConfig& rope, int64_t head_dim) {
  const int64_t half = head_dim / 2;
  std::vector<double> frequencies(half);
  for (int64_t i = 0; i < half; ++i) {
    frequencies[i] =
        std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  }
  const double original = static_cast<double>(rope.original_max_position);
  if (rope.type == RopeType::kLinear) {
    for (double& f : frequencies) f /= rope.factor;
  } else if (rope.type == RopeType::kLlama3) {
    for (double& f : frequencies) {
      const double turns = original * f / kTwoPi;  // in the original context
      const double smooth =
          (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
      const double keep = std::clamp(smooth, 0.0, 1.0);
      f = (1 - keep) * f / rope.factor + keep * f;
    }
  } else if (rope.type == RopeType::kYarn) {
    // The pair that turns `rotations` times in the original context.
    const auto pair = [&](double rotations) {
      return static_cast<double>(head_dim) * std::log(original / (rotations * kTwoPi)) /
             (2 * std::log(rope.theta));
    };
    double low = pair(rope.beta_fast), high = pair(rope.beta_slow);
    if (rope.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(head_dim - 1));
    if (low == high) high += 0.001;
    for (int64_t i = 0; i < half; ++i) {
      const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      frequencies[i] = ramp * frequencies[i] / rope.factor + (1 - ramp) * frequencies[i];
    }
  }
  return frequencies;
}

}  // namespace millrace
