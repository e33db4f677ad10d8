#include "model/model_config.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "model/adapter.h"
#include "model/config_fields.h"
#include "model/unknown_fields.h"
#include "nlohmann/json.hpp"
#include "spdlog/spdlog.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

const std::map<std::string, std::string>& Architectures() {
  static const auto* const classes =
      new std::map<std::string, std::string>{{"llama", "LlamaForCausalLM"},
                                             {"mistral", "MistralForCausalLM"},
                                             {"qwen2", "Qwen2ForCausalLM"},
                                             {"qwen3", "Qwen3ForCausalLM"},
                                             {"qwen3_moe", "Qwen3MoeForCausalLM"}};
  return *classes;
}

// What other configurations of the known architectures would compute differently.
absl::Status RefuseUnsupported(const ConfigFields& fields, const std::string& model_type) {
  if (const Json* act = fields.Find("hidden_act"); act != nullptr && *act != "silu") {
    return fields.Unsupported(absl::StrCat("\"hidden_act\" ", act->dump(), " (of silu)"));
  }
  if (const Json* own = fields.Find("auto_map");
      own != nullptr && own->is_object() && own->contains("AutoModelForCausalLM")) {
    return fields.Unsupported("a model with code of its own (\"auto_map\")");
  }
  if (model_type == "qwen3_moe") return absl::OkStatus();
  for (const char* name : {"num_experts", "num_local_experts"}) {
    const Json* experts = fields.Find(name);
    if (experts != nullptr && *experts != 0) {
      return fields.Unsupported(
          absl::StrCat("a mixture of experts (\"", name, "\") in a ", model_type, " model"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadArchitecture(const ConfigFields& fields, ModelConfig* config) {
  const Json* type = fields.Find("model_type");
  if (type == nullptr || !type->is_string()) {
    return fields.Bad("field \"model_type\" is missing or not a string");
  }
  config->model_type = type->get<std::string>();
  const auto known = Architectures().find(config->model_type);
  if (known == Architectures().end()) {
    std::string names;
    for (const auto& [name, _] : Architectures())
      absl::StrAppend(&names, names.empty() ? "" : ", ", name);
    return fields.Unsupported(
        absl::StrCat("architecture \"", config->model_type, "\" (of ", names, ")"));
  }
  const Json* architectures = fields.Find("architectures");
  if (architectures != nullptr && architectures->is_array() && !architectures->empty() &&
      (*architectures)[0] != known->second) {
    return fields.Unsupported(absl::StrCat("architecture ", (*architectures)[0].dump(),
                                           " with \"model_type\" \"", config->model_type, "\" (of ",
                                           known->second, ")"));
  }
  return absl::OkStatus();
}

absl::Status ReadSizes(const ConfigFields& fields, ModelConfig* config) {
  const std::optional<int64_t> no_default;
  MR_RETURN_IF_ERROR(fields.Read("vocab_size", no_default, &config->vocab_size));
  MR_RETURN_IF_ERROR(fields.Read("hidden_size", no_default, &config->hidden_size));
  MR_RETURN_IF_ERROR(fields.Read("intermediate_size", no_default, &config->intermediate_size));
  MR_RETURN_IF_ERROR(fields.Read("num_hidden_layers", no_default, &config->layers));
  MR_RETURN_IF_ERROR(fields.Read("num_attention_heads", no_default, &config->heads));
  MR_RETURN_IF_ERROR(fields.Read("max_position_embeddings", no_default, &config->max_position));
  // Llama has as many key/value heads as heads when the field is absent; others have no such rule.
  MR_RETURN_IF_ERROR(fields.Read(
      "num_key_value_heads",
      config->model_type == "llama" ? std::optional<int64_t>(config->heads) : no_default,
      &config->kv_heads));
  const bool needs_head_dim = config->model_type == "qwen3";
  if (fields.Find("head_dim") == nullptr && !needs_head_dim &&
      config->hidden_size % config->heads != 0) {
    return fields.Bad(absl::StrCat("\"hidden_size\" ", config->hidden_size,
                                   " is not a multiple of \"num_attention_heads\" ", config->heads,
                                   " and \"head_dim\" is missing"));
  }
  return fields.Read(
      "head_dim",
      needs_head_dim ? no_default : std::optional<int64_t>(config->hidden_size / config->heads),
      &config->head_dim);
}

absl::Status ReadBiases(const ConfigFields& fields, ModelConfig* config) {
  bool attention_bias = false;
  MR_RETURN_IF_ERROR(fields.Read("attention_bias", false, &attention_bias));
  const std::string& type = config->model_type;
  // Their modules have no such switch: transformers ignores the field.
  const bool fixed = type == "qwen2" || type == "mistral";
  if (type == "mistral" && attention_bias) {
    return fields.Unsupported("\"attention_bias\" true in a mistral model");
  }
  config->qk_norm = type == "qwen3" || type == "qwen3_moe";
  config->qkv_bias = type == "qwen2" || (!fixed && attention_bias);
  config->o_bias = !fixed && attention_bias;
  return absl::OkStatus();
}

// mistral's window is on unless null, and 4096 when the field is absent; qwen's is carried along
// but off unless switched on.
absl::Status ReadWindowSize(const ConfigFields& fields, ModelConfig* config) {
  const bool mistral = config->model_type == "mistral";
  bool on = mistral;
  if (!mistral) MR_RETURN_IF_ERROR(fields.Read("use_sliding_window", false, &on));
  const bool named = fields.Find("sliding_window") != nullptr;
  if (config->model_type == "llama" && (on || named)) {
    return fields.Unsupported("a sliding window (\"sliding_window\") in a llama model");
  }
  const bool null = fields.Has("sliding_window") && !named;
  if (!on || null) return absl::OkStatus();
  return fields.Read("sliding_window", int64_t{4096}, &config->sliding_window);
}

// "layer_types" as one flag a layer; empty when the field is absent.
absl::StatusOr<std::vector<bool>> ReadLayerTypes(const ConfigFields& fields, int64_t layers) {
  std::vector<bool> windowed;
  const Json* types = fields.Find("layer_types");
  if (types == nullptr) return windowed;
  if (!types->is_array() || types->size() != static_cast<size_t>(layers)) {
    return fields.Bad(absl::StrCat("\"layer_types\" are not a list of ", layers,
                                   " entries (\"num_hidden_layers\")"));
  }
  for (const Json& entry : *types) {
    if (entry != "full_attention" && entry != "sliding_attention") {
      return fields.Unsupported(absl::StrCat("\"layer_types\" entry ", entry.dump(),
                                             " (of full_attention, sliding_attention)"));
    }
    windowed.push_back(entry == "sliding_attention");
  }
  return windowed;
}

absl::Status ReadWindow(const ConfigFields& fields, ModelConfig* config) {
  MR_RETURN_IF_ERROR(ReadWindowSize(fields, config));
  MR_ASSIGN_OR_RETURN(const std::vector<bool> windowed, ReadLayerTypes(fields, config->layers));
  const bool by_layer = config->model_type == "qwen2" || config->model_type == "qwen3";
  if (by_layer && config->sliding_window > 0) {
    // Without "layer_types": the layers from this one on.
    int64_t first = 0;
    const Json* field = fields.Find("max_window_layers");
    if (field == nullptr || *field != 0) {
      MR_RETURN_IF_ERROR(fields.Read("max_window_layers", int64_t{28}, &first));
    }
    for (int64_t l = 0; l < config->layers; ++l) config->window_layers.push_back(l >= first);
    if (!windowed.empty()) config->window_layers = windowed;
  }
  // Elsewhere transformers ignores the list, so it must say what is done anyway.
  for (size_t l = 0; l < windowed.size(); ++l) {
    if (windowed[l] == (config->Window(static_cast<int64_t>(l)) > 0)) continue;
    return fields.Bad(absl::StrCat(
        "\"layer_types\" say ", windowed[l] ? "sliding_attention" : "full_attention", " for layer ",
        l, ", but \"sliding_window\" is ", config->sliding_window > 0 ? "on" : "off", " there"));
  }
  return absl::OkStatus();
}

absl::Status ReadExperts(const ConfigFields& fields, ModelConfig* config) {
  if (config->model_type != "qwen3_moe") return absl::OkStatus();
  const std::optional<int64_t> no_default;
  // transformers 4.x and 5.x spell it differently.
  const char* count = fields.Find("num_experts") != nullptr ? "num_experts" : "num_local_experts";
  MR_RETURN_IF_ERROR(fields.Read(count, no_default, &config->experts));
  MR_RETURN_IF_ERROR(fields.Read("num_experts_per_tok", no_default, &config->experts_per_token));
  MR_RETURN_IF_ERROR(
      fields.Read("moe_intermediate_size", no_default, &config->expert_intermediate_size));
  MR_RETURN_IF_ERROR(fields.Read("norm_topk_prob", false, &config->norm_topk_prob));
  MR_RETURN_IF_ERROR(fields.Read("decoder_sparse_step", int64_t{1}, &config->decoder_sparse_step));
  if (const Json* value = fields.Find("router_aux_loss_coef");
      value != nullptr && value->is_number()) {
    config->router_aux_loss_coef = value->get<double>();
  }
  const Json* dense = fields.Find("mlp_only_layers");
  if (dense == nullptr) return absl::OkStatus();
  if (!dense->is_array()) return fields.Bad("field \"mlp_only_layers\" is not a list");
  for (const Json& layer : *dense) {
    if (!layer.is_number_integer() || layer < 0 || layer >= config->layers) {
      return fields.Bad(absl::StrCat("\"mlp_only_layers\" holds ", layer.dump(), ", there are ",
                                     config->layers, " layers"));
    }
    config->mlp_only_layers.push_back(layer.get<int64_t>());
  }
  return absl::OkStatus();
}

// Once for a file, however often it is read: by the tokenizer's check, the loading, ...
void LogIgnoredFields(const std::string& path, const ModelConfig& config) {
  static absl::Mutex mu(absl::kConstInit);
  static auto* const logged = new std::set<std::string>;
  if (config.ignored_fields.empty()) return;
  {
    absl::MutexLock lock(&mu);
    if (!logged->insert(path).second) return;
  }
  spdlog::warn("{}: fields not known here have no effect: {}", path,
               absl::StrJoin(config.ignored_fields, ", "));
}

}  // namespace

std::string ArchitectureName(const std::string& model_type) {
  const auto it = Architectures().find(model_type);
  return it == Architectures().end() ? "" : it->second;
}

absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json_text,
                                             const std::string& file_name) {
  MR_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(json_text, file_name));
  const ConfigFields fields(json, file_name);
  ModelConfig config;
  MR_RETURN_IF_ERROR(ReadArchitecture(fields, &config));
  MR_RETURN_IF_ERROR(RefuseUnsupported(fields, config.model_type));
  MR_ASSIGN_OR_RETURN(config.ignored_fields, CheckUnknownFields(fields));
  MR_RETURN_IF_ERROR(ReadSizes(fields, &config));
  const auto validate = [&]() -> absl::Status {
    const absl::Status status = ValidateModelConfig(config);
    return status.ok() ? status : fields.Bad(std::string(status.message()));
  };
  MR_RETURN_IF_ERROR(validate());  // before lists as long as there are layers are made
  MR_ASSIGN_OR_RETURN(config.rope, ReadRopeConfig(fields, config.max_position));
  MR_RETURN_IF_ERROR(ReadBiases(fields, &config));
  MR_RETURN_IF_ERROR(ReadWindow(fields, &config));
  MR_RETURN_IF_ERROR(ReadExperts(fields, &config));
  MR_RETURN_IF_ERROR(fields.Read("rms_norm_eps", 1e-6, &config.rms_norm_eps));
  MR_RETURN_IF_ERROR(fields.Read("tie_word_embeddings", false, &config.tie_word_embeddings));
  MR_RETURN_IF_ERROR(fields.ReadIds("eos_token_id", &config.eos_ids));
  MR_RETURN_IF_ERROR(fields.ReadId("bos_token_id", &config.bos_id));
  MR_RETURN_IF_ERROR(fields.ReadId("pad_token_id", &config.pad_id));
  MR_RETURN_IF_ERROR(validate());
  return config;
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& folder) {
  MR_ASSIGN_OR_RETURN(const std::string dir, BaseModelDir(folder));
  const std::string path = JoinPath(dir, "config.json");
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  MR_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(text, path));
  LogIgnoredFields(path, config);
  const std::string generation_path = JoinPath(dir, "generation_config.json");
  if (FileExists(generation_path)) {
    MR_ASSIGN_OR_RETURN(const std::string generation, ReadFile(generation_path));
    MR_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(generation, generation_path));
    MR_RETURN_IF_ERROR(
        ConfigFields(json, generation_path).ReadIds("eos_token_id", &config.eos_ids));
  }
  return config;
}

}  // namespace millrace
