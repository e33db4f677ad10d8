// What follows from a ModelConfig: its checks, its parameters, its config.json.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/config_fields.h"
#include "model/model_config.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxLayers = 10000;
constexpr int64_t kMaxExperts = 4096;
constexpr int64_t kMaxExpertsOfAllLayers = 1 << 18;  // each has three matrices with a name

absl::Status ValidateExperts(const ModelConfig& config) {
  if (config.experts == 0) return absl::OkStatus();
  if (config.experts < 0 || config.experts > kMaxExperts) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"num_experts\" is ", config.experts, ", expected 1 to ", kMaxExperts));
  }
  if (config.layers * config.experts > kMaxExpertsOfAllLayers) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"num_experts\" ", config.experts, " in ", config.layers,
                     " layers are more than the limit of ", kMaxExpertsOfAllLayers));
  }
  if (config.experts_per_token < 1 || config.experts_per_token > config.experts) {
    return absl::InvalidArgumentError(absl::StrCat("\"num_experts_per_tok\" is ",
                                                   config.experts_per_token, " of ", config.experts,
                                                   " experts"));
  }
  if (config.expert_intermediate_size < 1 || config.decoder_sparse_step < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"moe_intermediate_size\" is ", config.expert_intermediate_size,
                     ", \"decoder_sparse_step\" ", config.decoder_sparse_step));
  }
  return absl::OkStatus();
}

void AddMlp(const ModelConfig& c, int64_t layer, const std::string& prefix,
            std::vector<ParameterShape>* shapes) {
  const auto add = [&](const std::string& at, int64_t inner) {
    shapes->push_back({at + "gate_proj.weight", {inner, c.hidden_size}});
    shapes->push_back({at + "up_proj.weight", {inner, c.hidden_size}});
    shapes->push_back({at + "down_proj.weight", {c.hidden_size, inner}});
  };
  if (!c.HasExperts(layer)) return add(prefix, c.intermediate_size);
  shapes->push_back({prefix + "gate.weight", {c.experts, c.hidden_size}});
  for (int64_t e = 0; e < c.experts; ++e) {
    add(absl::StrCat(prefix, "experts.", e, "."), c.expert_intermediate_size);
  }
}

void AddWindow(const ModelConfig& config, Json* json) {
  Json& j = *json;
  if (config.model_type == "llama") return;
  j["sliding_window"] = config.sliding_window > 0 ? Json(config.sliding_window) : Json();
  if (config.model_type == "mistral") return;
  j["use_sliding_window"] = config.sliding_window > 0;
  if (config.model_type == "qwen3_moe") return;
  Json types = Json::array();
  // The layer from which on all have a window: all that readers of before 2025 know.
  int64_t first = config.layers;
  for (int64_t l = config.layers - 1; l >= 0; --l) {
    if (config.Window(l) > 0 && first == l + 1) first = l;
  }
  for (int64_t l = 0; l < config.layers; ++l) {
    types.push_back(config.Window(l) > 0 ? "sliding_attention" : "full_attention");
  }
  j["layer_types"] = types;
  j["max_window_layers"] = first;
}

void AddExperts(const ModelConfig& config, Json* json) {
  if (config.experts == 0) return;
  Json& j = *json;
  j["num_experts"] = config.experts;
  j["num_experts_per_tok"] = config.experts_per_token;
  j["moe_intermediate_size"] = config.expert_intermediate_size;
  j["norm_topk_prob"] = config.norm_topk_prob;
  j["decoder_sparse_step"] = config.decoder_sparse_step;
  j["mlp_only_layers"] = config.mlp_only_layers;
  j["router_aux_loss_coef"] = config.router_aux_loss_coef;
  j["output_router_logits"] = false;
}

void AddRope(const ModelConfig& config, Json* json) {
  Json rope = RopeConfigToJson(config.rope);
  (*json)["rope_parameters"] = rope;
  (*json)["rope_theta"] = config.rope.theta;
  rope.erase("rope_theta");
  (*json)["rope_scaling"] = config.rope.type == RopeType::kDefault ? Json() : rope;
}

}  // namespace

bool ModelConfig::HasExperts(int64_t layer) const {
  return experts > 0 && (layer + 1) % decoder_sparse_step == 0 &&
         std::find(mlp_only_layers.begin(), mlp_only_layers.end(), layer) == mlp_only_layers.end();
}

int64_t ParameterShape::Elements() const {
  int64_t n = 1;
  for (int64_t dim : shape) n *= dim;
  return n;
}

std::string ModelConfigToJson(const ModelConfig& config, const std::string& dtype) {
  const auto id = [](int32_t value) { return value < 0 ? Json() : Json(value); };
  Json eos;
  if (config.eos_ids.size() == 1) eos = config.eos_ids[0];
  if (config.eos_ids.size() > 1) eos = config.eos_ids;
  const char* torch_dtype = dtype == "BF16" ? "bfloat16" : dtype == "F16" ? "float16" : "float32";
  Json json = {
      {"architectures", Json::array({ArchitectureName(config.model_type)})},
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
      {"tie_word_embeddings", config.tie_word_embeddings},
      {"attention_dropout", 0.0},
      {"initializer_range", 0.02},
      {"use_cache", true},
      {"bos_token_id", id(config.bos_id)},
      {"eos_token_id", eos},
      {"pad_token_id", id(config.pad_id)},
      {"dtype", torch_dtype},
      {"torch_dtype", torch_dtype},
  };
  if (config.model_type == "llama") json["mlp_bias"] = false;
  if (config.model_type != "qwen2" && config.model_type != "mistral") {
    json["attention_bias"] = config.o_bias;
  }
  AddRope(config, &json);
  AddWindow(config, &json);
  AddExperts(config, &json);
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
    if (value < 1 || value > ConfigFields::kMaxDimension) {
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
  if (config.heads > ConfigFields::kMaxDimension / config.head_dim) {
    return absl::InvalidArgumentError(absl::StrCat("\"num_attention_heads\" ", config.heads,
                                                   " x \"head_dim\" ", config.head_dim,
                                                   " is too large"));
  }
  if (!(config.rms_norm_eps > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"rms_norm_eps\" ", config.rms_norm_eps, " must be above 0"));
  }
  MR_RETURN_IF_ERROR(ValidateRopeConfig(config.rope));
  MR_RETURN_IF_ERROR(ValidateExperts(config));
  if (!config.window_layers.empty() &&
      config.window_layers.size() != static_cast<size_t>(config.layers)) {
    return absl::InvalidArgumentError(absl::StrCat("windows of ", config.window_layers.size(),
                                                   " layers in a model of ", config.layers));
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
    AddMlp(config, layer, prefix + "mlp.", &shapes);
  }
  shapes.push_back({"model.norm.weight", {hidden}});
  if (!config.tie_word_embeddings) {
    shapes.push_back({"lm_head.weight", {config.vocab_size, hidden}});
  }
  return shapes;
}

}  // namespace millrace
