// Architecture of a decoder-only model, from a Hugging Face config.json (transformers 4.x and 5.x
// layouts).
#ifndef MILLRACE_MODEL_MODEL_CONFIG_H_
#define MILLRACE_MODEL_MODEL_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace {

struct ModelConfig {
  std::string model_type;  // llama, qwen2, qwen3
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  bool tie_word_embeddings = false;
  bool qk_norm = false;          // qwen3: RMSNorm over head_dim on q and k before rope
  bool qkv_bias = false;         // qwen2; llama with attention_bias
  bool o_bias = false;           // llama with attention_bias
  std::vector<int32_t> eos_ids;  // from config.json and generation_config.json
  int32_t bos_id = -1;
  int32_t pad_id = -1;
};

// Reads dir/config.json (and generation_config.json when there). UNIMPLEMENTED names an
// architecture or a field that changes the maths and is not supported (rope scaling, sliding
// window, experts); INVALID_ARGUMENT names a missing or contradictory field.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& dir);
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json_text,
                                             const std::string& file_name);
// config.json text that transformers reads (both layouts' keys), dtype float32.
std::string ModelConfigToJson(const ModelConfig& config);
// Divisibility and positivity.
absl::Status ValidateModelConfig(const ModelConfig& config);
// Parameter names and shapes in HF spelling, in a fixed order: embed, layers in order, norm,
// lm_head when untied.
struct ParameterShape {
  std::string name;
  std::vector<int64_t> shape;
};
std::vector<ParameterShape> ParameterShapes(const ModelConfig& config);

}  // namespace millrace

#endif  // MILLRACE_MODEL_MODEL_CONFIG_H_
