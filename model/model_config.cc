#include "model/model_config.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxDimension = int64_t{1} << 31;
constexpr int64_t kMaxLayers = 10000;

// Typed access to the fields of one config file; errors name the file and the field.
class Fields {
 public:
  Fields(const Json& json, std::string file) : json_(json), file_(std::move(file)) {}

  // The value, or null when the field is absent or null.
  const Json* Find(const char* name) const {
    const auto it = json_.find(name);
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }
  absl::Status Bad(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat(file_, ": ", what));
  }
  absl::Status Unsupported(const std::string& what) const {
    return absl::UnimplementedError(absl::StrCat(file_, ": ", what, " is not supported"));
  }
  absl::Status Read(const char* name, std::optional<int64_t> fallback, int64_t* out) const {
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
  absl::Status Read(const char* name, bool fallback, bool* out) const {
    const Json* value = Find(name);
    if (value != nullptr && !value->is_boolean()) {
      return Bad(absl::StrCat("field \"", name, "\" is ", value->dump(), ", expected a boolean"));
    }
    *out = value == nullptr ? fallback : value->get<bool>();
    return absl::OkStatus();
  }
  absl::Status Read(const char* name, double fallback, double* out) const {
    const Json* value = Find(name);
    if (value != nullptr && (!value->is_number() || !(value->get<double>() > 0))) {
      return Bad(
          absl::StrCat("field \"", name, "\" is ", value->dump(), ", expected a number above 0"));
    }
    *out = value == nullptr ? fallback : value->get<double>();
    return absl::OkStatus();
  }
  // Token ids: a number, a list of numbers, or nothing.
  absl::Status ReadIds(const char* name, std::vector<int32_t>* out) const {
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
  absl::Status ReadId(const char* name, int32_t* out) const {
    const Json* value = Find(name);
    // -1 is how some published configs spell "none".
    if (value == nullptr || *value == -1) return absl::OkStatus();
    std::vector<int32_t> ids;
    MR_RETURN_IF_ERROR(ReadIds(name, &ids));
    if (!ids.empty()) *out = ids[0];
    return absl::OkStatus();
  }

 private:
  const Json& json_;
  std::string file_;
};

absl::StatusOr<Json> ParseObject(const std::string& text, const std::string& file_name) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(file_name, ": not a JSON object"));
  }
  return json;
}

// What other configurations of the known architectures would compute differently.
absl::Status RefuseUnsupported(const Fields& fields, const std::string& model_type) {
  for (const char* name : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    const Json* experts = fields.Find(name);
    if (experts != nullptr && *experts != 0) {
      return fields.Unsupported(absl::StrCat("a mixture of experts (\"", name, "\")"));
    }
  }
  if (const Json* act = fields.Find("hidden_act"); act != nullptr && *act != "silu") {
    return fields.Unsupported(absl::StrCat("\"hidden_act\" ", act->dump()));
  }
  if (const Json* bias = fields.Find("mlp_bias"); bias != nullptr && *bias == true) {
    return fields.Unsupported("\"mlp_bias\" true");
  }
  if (fields.Find("quantization_config") != nullptr) {
    return fields.Unsupported("\"quantization_config\"");
  }
  if (const Json* types = fields.Find("layer_types"); types != nullptr) {
    for (const Json& type : *types) {
      if (type != "full_attention") {
        return fields.Unsupported(absl::StrCat("\"layer_types\" entry ", type.dump()));
      }
    }
  }
  const Json* window = fields.Find("sliding_window");
  const Json* use_window = fields.Find("use_sliding_window");
  // Qwen configs carry a window that is off unless "use_sliding_window" is true.
  const bool window_on =
      use_window != nullptr ? *use_window == true : window != nullptr && model_type == "llama";
  if (window_on) return fields.Unsupported("a sliding window (\"sliding_window\")");
  return absl::OkStatus();
}

absl::Status ReadRope(const Fields& fields, ModelConfig* config) {
  MR_RETURN_IF_ERROR(fields.Read("rope_theta", 10000.0, &config->rope_theta));
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const Json* rope = fields.Find(name);
    if (rope == nullptr) continue;
    if (!rope->is_object()) {
      return fields.Bad(absl::StrCat("field \"", name, "\" is not an object"));
    }
    for (const char* key : {"rope_type", "type"}) {
      const auto type = rope->find(key);
      if (type != rope->end() && !type->is_null() && *type != "default") {
        return fields.Unsupported(absl::StrCat("rope scaling ", type->dump(), " (\"", name, "\")"));
      }
    }
    const Fields inner(*rope, absl::StrCat("\"", name, "\""));
    double fraction = 1;
    MR_RETURN_IF_ERROR(inner.Read("partial_rotary_factor", 1.0, &fraction));
    if (fraction != 1) return fields.Unsupported("\"partial_rotary_factor\" other than 1");
    if (inner.Find("rope_theta") == nullptr) continue;
    double theta = 0;
    MR_RETURN_IF_ERROR(inner.Read("rope_theta", 10000.0, &theta));
    if (fields.Find("rope_theta") != nullptr && theta != config->rope_theta) {
      return fields.Bad(absl::StrCat("\"rope_theta\" is ", config->rope_theta, " but \"", name,
                                     "\" says ", theta));
    }
    config->rope_theta = theta;
  }
  double fraction = 1;
  MR_RETURN_IF_ERROR(fields.Read("partial_rotary_factor", 1.0, &fraction));
  if (fraction != 1) return fields.Unsupported("\"partial_rotary_factor\" other than 1");
  return absl::OkStatus();
}

absl::Status ReadArchitecture(const Fields& fields, ModelConfig* config) {
  const Json* type = fields.Find("model_type");
  if (type == nullptr || !type->is_string()) {
    return fields.Bad("field \"model_type\" is missing or not a string");
  }
  config->model_type = type->get<std::string>();
  static const std::map<std::string, std::string>* const kClasses =
      new std::map<std::string, std::string>{{"llama", "LlamaForCausalLM"},
                                             {"qwen2", "Qwen2ForCausalLM"},
                                             {"qwen3", "Qwen3ForCausalLM"}};
  const auto known = kClasses->find(config->model_type);
  if (known == kClasses->end()) {
    return fields.Unsupported(
        absl::StrCat("architecture \"", config->model_type, "\" (of llama, qwen2, qwen3)"));
  }
  const Json* architectures = fields.Find("architectures");
  if (architectures != nullptr && architectures->is_array() && !architectures->empty() &&
      (*architectures)[0] != known->second) {
    return fields.Unsupported(absl::StrCat("architecture ", (*architectures)[0].dump(),
                                           " with \"model_type\" \"", config->model_type, "\""));
  }
  return absl::OkStatus();
}

absl::Status ReadSizes(const Fields& fields, ModelConfig* config) {
  const bool llama = config->model_type == "llama";
  MR_RETURN_IF_ERROR(fields.Read("vocab_size", std::nullopt, &config->vocab_size));
  MR_RETURN_IF_ERROR(fields.Read("hidden_size", std::nullopt, &config->hidden_size));
  MR_RETURN_IF_ERROR(fields.Read("intermediate_size", std::nullopt, &config->intermediate_size));
  MR_RETURN_IF_ERROR(fields.Read("num_hidden_layers", std::nullopt, &config->layers));
  MR_RETURN_IF_ERROR(fields.Read("num_attention_heads", std::nullopt, &config->heads));
  MR_RETURN_IF_ERROR(fields.Read("max_position_embeddings", std::nullopt, &config->max_position));
  // Llama has as many key/value heads as heads when the field is absent; Qwen has no such rule.
  const std::optional<int64_t> no_default;
  MR_RETURN_IF_ERROR(fields.Read("num_key_value_heads",
                                 llama ? std::optional<int64_t>(config->heads) : no_default,
                                 &config->kv_heads));
  if (fields.Find("head_dim") == nullptr && config->model_type != "qwen3" &&
      config->hidden_size % config->heads != 0) {
    return fields.Bad(absl::StrCat("\"hidden_size\" ", config->hidden_size,
                                   " is not a multiple of \"num_attention_heads\" ", config->heads,
                                   " and \"head_dim\" is missing"));
  }
  return fields.Read("head_dim",
                     config->model_type == "qwen3"
                         ? no_default
                         : std::optional<int64_t>(config->hidden_size / config->heads),
                     &config->head_dim);
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json_text,
                                             const std::string& file_name) {
  MR_ASSIGN_OR_RETURN(const Json json, ParseObject(json_text, file_name));
  const Fields fields(json, file_name);
  ModelConfig config;
  MR_RETURN_IF_ERROR(ReadArchitecture(fields, &config));
  MR_RETURN_IF_ERROR(RefuseUnsupported(fields, config.model_type));
  MR_RETURN_IF_ERROR(ReadSizes(fields, &config));
  MR_RETURN_IF_ERROR(ReadRope(fields, &config));
  MR_RETURN_IF_ERROR(fields.Read("rms_norm_eps", 1e-6, &config.rms_norm_eps));
  MR_RETURN_IF_ERROR(fields.Read("tie_word_embeddings", false, &config.tie_word_embeddings));
  bool attention_bias = false;
  MR_RETURN_IF_ERROR(fields.Read("attention_bias", false, &attention_bias));
  config.qk_norm = config.model_type == "qwen3";
  config.qkv_bias = config.model_type == "qwen2" || attention_bias;
  config.o_bias = config.model_type != "qwen2" && attention_bias;
  MR_RETURN_IF_ERROR(fields.ReadIds("eos_token_id", &config.eos_ids));
  MR_RETURN_IF_ERROR(fields.ReadId("bos_token_id", &config.bos_id));
  MR_RETURN_IF_ERROR(fields.ReadId("pad_token_id", &config.pad_id));
  if (absl::Status status = ValidateModelConfig(config); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(file_name, ": ", status.message()));
  }
  return config;
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& dir) {
  const std::string path = JoinPath(dir, "config.json");
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  MR_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(text, path));
  const std::string generation_path = JoinPath(dir, "generation_config.json");
  if (FileExists(generation_path)) {
    MR_ASSIGN_OR_RETURN(const std::string generation, ReadFile(generation_path));
    MR_ASSIGN_OR_RETURN(const Json json, ParseObject(generation, generation_path));
    MR_RETURN_IF_ERROR(Fields(json, generation_path).ReadIds("eos_token_id", &config.eos_ids));
  }
  return config;
}

std::string ModelConfigToJson(const ModelConfig& config) {
  const auto id = [](int32_t value) { return value < 0 ? Json() : Json(value); };
  Json eos;
  if (config.eos_ids.size() == 1) eos = config.eos_ids[0];
  if (config.eos_ids.size() > 1) eos = config.eos_ids;
  const std::string architecture = config.model_type == "llama"   ? "LlamaForCausalLM"
                                   : config.model_type == "qwen2" ? "Qwen2ForCausalLM"
                                                                  : "Qwen3ForCausalLM";
  const Json json = {
      {"architectures", Json::array({architecture})},
      {"model_type", config.model_type},
      {"hidden_act", "silu"},
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.layers},
      {"num_attention_heads", config.heads},
      {"num_key_value_heads", config.kv_heads},
      {"head_dim", config.head_dim},
      {"max_position_embeddings", config.max_position},
      {"rms_norm_eps", config.rms_norm_eps},
      {"rope_theta", config.rope_theta},
      {"rope_scaling", Json()},
      {"rope_parameters", {{"rope_theta", config.rope_theta}, {"rope_type", "default"}}},
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"attention_bias", config.o_bias},
      {"attention_dropout", 0.0},
      {"mlp_bias", false},
      {"initializer_range", 0.02},
      {"use_cache", true},
      {"use_sliding_window", false},
      {"bos_token_id", id(config.bos_id)},
      {"eos_token_id", eos},
      {"pad_token_id", id(config.pad_id)},
      {"dtype", "float32"},
      {"torch_dtype", "float32"},
  };
  return json.dump(2) + "\n";
}

absl::Status ValidateModelConfig(const ModelConfig& config) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.layers},
      {"num_attention_heads", config.heads},
      {"num_key_value_heads", config.kv_heads},
      {"head_dim", config.head_dim},
      {"max_position_embeddings", config.max_position}};
  for (const auto& [name, value] : sizes) {
    if (value < 1 || value > kMaxDimension) {
      return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is ", value));
    }
  }
  if (config.layers > kMaxLayers) {
    return absl::InvalidArgumentError(absl::StrCat("\"num_hidden_layers\" is ", config.layers,
                                                   ", more than the limit of ", kMaxLayers));
  }
  if (config.heads % config.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("\"num_attention_heads\" ", config.heads,
                                                   " is not a multiple of \"num_key_value_heads\" ",
                                                   config.kv_heads));
  }
  if (config.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"head_dim\" ", config.head_dim, " is odd, rotary embedding needs pairs"));
  }
  if (config.heads > kMaxDimension / config.head_dim) {
    return absl::InvalidArgumentError(absl::StrCat("\"num_attention_heads\" ", config.heads,
                                                   " x \"head_dim\" ", config.head_dim,
                                                   " is too large"));
  }
  if (!(config.rms_norm_eps > 0) || !(config.rope_theta > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("\"rms_norm_eps\" ", config.rms_norm_eps,
                                                   " and \"rope_theta\" ", config.rope_theta,
                                                   " must be above 0"));
  }
  for (int32_t id : config.eos_ids) {
    if (id >= config.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"eos_token_id\" ", id, " is outside the vocabulary of ", config.vocab_size));
    }
  }
  return absl::OkStatus();
}

std::vector<ParameterShape> ParameterShapes(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t q = config.heads * config.head_dim;
  const int64_t kv = config.kv_heads * config.head_dim;
  std::vector<ParameterShape> shapes;
  shapes.push_back({"model.embed_tokens.weight", {config.vocab_size, hidden}});
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string prefix = absl::StrCat("model.layers.", layer, ".");
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      shapes.push_back({prefix + name, std::move(shape)});
    };
    add("input_layernorm.weight", {hidden});
    add("self_attn.q_proj.weight", {q, hidden});
    add("self_attn.k_proj.weight", {kv, hidden});
    add("self_attn.v_proj.weight", {kv, hidden});
    if (config.qkv_bias) {
      add("self_attn.q_proj.bias", {q});
      add("self_attn.k_proj.bias", {kv});
      add("self_attn.v_proj.bias", {kv});
    }
    add("self_attn.o_proj.weight", {hidden, q});
    if (config.o_bias) add("self_attn.o_proj.bias", {hidden});
    if (config.qk_norm) {
      add("self_attn.q_norm.weight", {config.head_dim});
      add("self_attn.k_norm.weight", {config.head_dim});
    }
    add("post_attention_layernorm.weight", {hidden});
    add("mlp.gate_proj.weight", {config.intermediate_size, hidden});
    add("mlp.up_proj.weight", {config.intermediate_size, hidden});
    add("mlp.down_proj.weight", {hidden, config.intermediate_size});
  }
  shapes.push_back({"model.norm.weight", {hidden}});
  if (!config.tie_word_embeddings)
    shapes.push_back({"lm_head.weight", {config.vocab_size, hidden}});
  return shapes;
}

}  // namespace millrace
