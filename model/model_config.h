// Architecture of a decoder-only model, from a Hugging Face config.json (transformers 4.x and 5.x
// layouts).
#ifndef MILLRACE_MODEL_MODEL_CONFIG_H_
#define MILLRACE_MODEL_MODEL_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/rope.h"

namespace millrace {

struct ModelConfig {
  std::string model_type;  // llama, mistral, qwen2, qwen3, qwen3_moe
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position = 0;
  double rms_norm_eps = 1e-6;
  RopeConfig rope;
  bool tie_word_embeddings = false;
  bool qk_norm = false;   // qwen3: RMSNorm over head_dim on q and k before rope
  bool qkv_bias = false;  // qwen2; llama with attention_bias
  bool o_bias = false;    // llama with attention_bias
  // Most tokens that a token of a windowed layer sees, itself counted; 0 = no window anywhere.
  int64_t sliding_window = 0;
  std::vector<bool> window_layers;  // (layers), which have it; empty = all
  // Mixture of experts: 0 = none, every layer's MLP is dense.
  int64_t experts = 0;
  int64_t experts_per_token = 0;
  int64_t expert_intermediate_size = 0;
  bool norm_topk_prob = false;      // the chosen experts' probabilities are divided by their sum
  int64_t decoder_sparse_step = 1;  // every so-manieth layer has experts ...
  std::vector<int64_t> mlp_only_layers;  // ... but these
  double router_aux_loss_coef = 0.001;   // carried along; the forward doesn't use it
  std::vector<int32_t> eos_ids;          // from config.json and generation_config.json
  int32_t bos_id = -1;
  int32_t pad_id = -1;
  // Fields of config.json that are not known here and are taken to have no effect.
  std::vector<std::string> ignored_fields;

  // The window of a layer, 0 when it sees everything.
  int64_t Window(int64_t layer) const {
    return window_layers.empty() || window_layers[layer] ? sliding_window : 0;
  }
  bool HasExperts(int64_t layer) const;
  // Keys and values of a token in all layers: what a cache holds.
  int64_t KvElementsPerToken() const { return 2 * layers * kv_heads * head_dim; }
};

// Reads dir/config.json (and generation_config.json when there); of a PEFT adapter's folder, its
// base model's. UNIMPLEMENTED names an architecture or a field that changes the maths and is not
// supported, known or not (model/unknown_fields.h); INVALID_ARGUMENT names a missing or
// contradictory field. ignored_fields are logged, once for a file in the life of a process.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& dir);
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json_text,
                                             const std::string& file_name);
// config.json text that transformers 4.x and 5.x read (both layouts' keys). dtype: safetensors'
// spelling of the weights', F32, BF16 or F16.
std::string ModelConfigToJson(const ModelConfig& config, const std::string& dtype = "F32");
// Divisibility and positivity.
absl::Status ValidateModelConfig(const ModelConfig& config);
// Class of transformers; "" = not one of the supported types.
std::string ArchitectureName(const std::string& model_type);
// Parameter names and shapes in HF spelling, in a fixed order: embed, layers in order, norm,
// lm_head when untied.
struct ParameterShape {
  std::string name;
  std::vector<int64_t> shape;
  int64_t Elements() const;
};
std::vector<ParameterShape> ParameterShapes(const ModelConfig& config);

}  // namespace millrace

#endif  // MILLRACE_MODEL_MODEL_CONFIG_H_
