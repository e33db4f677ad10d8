#include "model/adapter.h"

#include <cmath>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "model/config_fields.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr char kConfigName[] = "adapter_config.json";
constexpr char kWeightsName[] = "adapter_model.safetensors";

struct LoraSettings {
  double alpha = 0;
  bool by_root = false;  // rsLoRA: alpha / sqrt(r)
  std::map<std::string, double> alpha_of;

  double Scaling(const std::string& module, int64_t rank) const {
    double own = alpha;
    for (const auto& [suffix, value] : alpha_of) {
      if (module == suffix || absl::EndsWith(module, "." + suffix)) own = value;
    }
    const double r = static_cast<double>(rank);
    return own / (by_root ? std::sqrt(r) : r);
  }
};

bool Unset(const Json& value) {
  return value.is_null() || value == false || value == 0 ||
         ((value.is_array() || value.is_object()) && value.empty());
}

// Options of adapter_config.json that compute something else.
absl::Status RefuseUnsupported(const ConfigFields& fields) {
  if (const Json* type = fields.Find("peft_type"); type == nullptr || *type != "LORA") {
    return fields.Unsupported(
        absl::StrCat("\"peft_type\" ", type == nullptr ? "(missing)" : type->dump(), " (of LORA)"));
  }
  if (const Json* bias = fields.Find("bias"); bias != nullptr && *bias != "none") {
    return fields.Unsupported(absl::StrCat("\"bias\" ", bias->dump()));
  }
  for (const char* name :
       {"use_dora", "use_qalora", "use_bdlora", "lora_bias", "fan_in_fan_out", "modules_to_save",
        "layer_replication", "alora_invocation_tokens", "target_parameters",
        "trainable_token_indices", "velora_config", "monteclora_config", "kasa_config"}) {
    if (const Json* value = fields.Find(name); value != nullptr && !Unset(*value)) {
      return fields.Unsupported(absl::StrCat("\"", name, "\" ", value->dump()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LoraSettings> ReadSettings(const std::string& dir) {
  const std::string path = JoinPath(dir, kConfigName);
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  MR_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text, path));
  const ConfigFields fields(json, path);
  MR_RETURN_IF_ERROR(RefuseUnsupported(fields));
  LoraSettings settings;
  MR_RETURN_IF_ERROR(fields.Read("lora_alpha", std::optional<double>(), &settings.alpha));
  MR_RETURN_IF_ERROR(fields.Read("use_rslora", false, &settings.by_root));
  const Json* pattern = fields.Find("alpha_pattern");
  if (pattern == nullptr) return settings;
  if (!pattern->is_object()) return fields.Bad("\"alpha_pattern\" is not an object");
  for (const auto& [module, value] : pattern->items()) {
    if (module.find_first_of("^$*+?()[]|\\") != std::string::npos || !value.is_number()) {
      return fields.Unsupported(
          absl::StrCat("\"alpha_pattern\" entry \"", module, "\": ", value.dump()));
    }
    settings.alpha_of[module] = value.get<double>();
  }
  return settings;
}

// "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight" -> the module's name and which of the
// two it is; empty when it is neither.
std::pair<std::string, char> ModuleOf(absl::string_view tensor) {
  absl::ConsumePrefix(&tensor, "base_model.model.");
  for (const char which : {'A', 'B'}) {
    absl::string_view module = tensor;
    if (absl::ConsumeSuffix(&module, absl::StrCat(".lora_", std::string(1, which), ".weight"))) {
      return {std::string(module), which};
    }
  }
  return {"", ' '};
}

absl::Status CheckPair(const LoraPair& pair, const ParameterShape& weight) {
  const std::vector<int64_t>&a = pair.a.shape, &b = pair.b.shape, &w = weight.shape;
  const bool fits = a.size() == 2 && b.size() == 2 && w.size() == 2 && a[0] >= 1 && a[0] == b[1] &&
                    a[1] == w[1] && b[0] == w[0];
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("lora_A (", absl::StrJoin(a, ", "), ") and lora_B (", absl::StrJoin(b, ", "),
                   ") do not fit ", weight.name, " (", absl::StrJoin(w, ", "), ")"));
}

}  // namespace

bool IsAdapterDir(const std::string& dir) {
  return FileExists(JoinPath(dir, kConfigName)) && !FileExists(JoinPath(dir, "config.json"));
}

absl::StatusOr<std::string> BaseModelDir(const std::string& dir) {
  if (!IsAdapterDir(dir)) return dir;
  const std::string path = JoinPath(dir, kConfigName);
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  MR_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text, path));
  std::string base;
  MR_RETURN_IF_ERROR(ConfigFields(json, path).Read("base_model_name_or_path", &base));
  for (const std::string& candidate : {JoinPath(dir, base), base}) {
    if (!base.empty() && FileExists(JoinPath(candidate, "config.json"))) {
      return std::filesystem::path(candidate).lexically_normal().string();
    }
  }
  return absl::NotFoundError(absl::StrCat(path, ": \"base_model_name_or_path\" is \"", base,
                                          "\", which is no model folder here; put the base model "
                                          "on this machine and its path into that field"));
}

absl::StatusOr<std::string> TokenizerDir(const std::string& dir) {
  if (FileExists(JoinPath(dir, "tokenizer.json"))) return dir;
  return BaseModelDir(dir);
}

absl::StatusOr<Adapter> Adapter::Open(const std::string& dir, const ModelConfig& config) {
  MR_ASSIGN_OR_RETURN(const LoraSettings settings, ReadSettings(dir));
  const std::string path = JoinPath(dir, kWeightsName);
  MR_ASSIGN_OR_RETURN(SafetensorsReader reader, SafetensorsReader::Open(path));
  Adapter adapter(std::move(reader));
  std::map<std::string, ParameterShape> weights;
  for (ParameterShape& p : ParameterShapes(config)) {
    std::string name = p.name;
    weights.emplace(std::move(name), std::move(p));
  }
  for (const auto& [name, tensor] : adapter.reader_.tensors()) {
    const auto [module, which] = ModuleOf(name);
    const auto weight = weights.find(module + ".weight");
    if (module.empty() || weight == weights.end()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor \"", name,
                                                     "\" adapts no matrix of a ", config.model_type,
                                                     " model of this shape"));
    }
    if (DtypeSize(tensor.dtype) == 0 ||
        (tensor.dtype != "F32" && tensor.dtype != "BF16" && tensor.dtype != "F16")) {
      return absl::UnimplementedError(absl::StrCat(path, ": tensor \"", name, "\" has dtype ",
                                                   tensor.dtype, " (of F32, BF16, F16)"));
    }
    LoraPair& pair = adapter.pairs_[weight->first];
    (which == 'A' ? pair.a : pair.b) = tensor;
  }
  for (auto& [name, pair] : adapter.pairs_) {
    // One half missing has no shape, so it is named here too.
    if (absl::Status status = CheckPair(pair, weights.at(name)); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.message()));
    }
    pair.scaling =
        settings.Scaling(std::string(absl::StripSuffix(name, ".weight")), pair.a.shape[0]);
  }
  if (adapter.pairs_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": holds no LoRA tensors"));
  }
  return adapter;
}

}  // namespace millrace
