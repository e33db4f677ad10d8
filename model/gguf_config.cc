#include "model/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "model/config_fields.h"
#include "model/gguf_dequant.h"

namespace millrace {
namespace {

// A float32 of the file as the decimal number that was meant (1e-5, not 9.999999747e-06).
double Meant(double value) { return std::strtod(absl::StrFormat("%.6g", value).c_str(), nullptr); }

// What "rope_freqs.weight" holds for Llama 3.1: by how much each pair's frequency is divided. The
// file does not say from which settings; all published models differ in the factor only.
absl::StatusOr<RopeConfig> RopeFromFactors(const GgufTensor& tensor, RopeConfig rope,
                                           int64_t head_dim) {
  const int64_t half = head_dim / 2;
  if (tensor.shape != std::vector<int64_t>{half}) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor \"rope_freqs.weight\" does not have the ", half, " elements of half a head"));
  }
  std::vector<float> factors(half);
  MR_RETURN_IF_ERROR(Dequantize(tensor, absl::MakeSpan(factors)));
  const std::vector<double> plain = RopeFrequencies(rope, head_dim);
  rope.type = RopeType::kLlama3;
  rope.factor = Meant(*std::max_element(factors.begin(), factors.end()));
  rope.low_freq_factor = 1;
  rope.high_freq_factor = 4;
  rope.original_max_position = 8192;
  MR_RETURN_IF_ERROR(ValidateRopeConfig(rope));
  const std::vector<double> scaled = RopeFrequencies(rope, head_dim);
  for (int64_t i = 0; i < half; ++i) {
    if (!(std::abs(plain[i] / scaled[i] / factors[i] - 1) < 1e-3)) {
      return absl::UnimplementedError(
          absl::StrFormat("\"rope_freqs.weight\" are not Llama 3's (pair %d is divided by %g, not "
                          "%g): not supported",
                          i, factors[i], plain[i] / scaled[i]));
    }
  }
  return rope;
}

absl::StatusOr<RopeConfig> RopeFromGguf(const GgufReader& gguf, const std::string& prefix,
                                        const ModelConfig& config) {
  RopeConfig rope;
  rope.theta = gguf.Get<double>(prefix + "rope.freq_base").value_or(10000);
  MR_RETURN_IF_ERROR(ValidateRopeConfig(rope));
  const int64_t rotated =
      gguf.Get<int64_t>(prefix + "rope.dimension_count").value_or(config.head_dim);
  if (rotated != config.head_dim) {
    return absl::UnimplementedError(absl::StrCat("\"", prefix, "rope.dimension_count\" ", rotated,
                                                 " of heads of ", config.head_dim,
                                                 " is not supported"));
  }
  const std::string at = prefix + "rope.scaling.";
  const std::string type = gguf.Get<std::string>(at + "type").value_or("none");
  const auto factors = gguf.tensors().find("rope_freqs.weight");
  if (factors != gguf.tensors().end()) {
    if (type == "none") return RopeFromFactors(factors->second, rope, config.head_dim);
    return absl::UnimplementedError(absl::StrCat(
        "rope scaling \"", type, "\" together with \"rope_freqs.weight\" is not supported"));
  }
  if (type == "none") return rope;
  if (type != "linear" && type != "yarn") {
    return absl::UnimplementedError(absl::StrCat("rope scaling \"", type,
                                                 "\" is not supported (of none, linear, yarn, and "
                                                 "Llama 3's rope_freqs.weight)"));
  }
  rope.factor = Meant(gguf.Get<double>(at + "factor").value_or(0));
  if (type == "linear") {
    rope.type = RopeType::kLinear;
  } else {
    rope.type = RopeType::kYarn;
    rope.original_max_position =
        gguf.Get<int64_t>(at + "original_context_length").value_or(config.max_position);
    rope.beta_fast = Meant(gguf.Get<double>(at + "yarn_beta_fast").value_or(rope.beta_fast));
    rope.beta_slow = Meant(gguf.Get<double>(at + "yarn_beta_slow").value_or(rope.beta_slow));
    rope.attention_factor = (1 + 0.1 * std::log(std::max(rope.factor, 1.0))) *
                            Meant(gguf.Get<double>(at + "attn_factor").value_or(1));
  }
  MR_RETURN_IF_ERROR(ValidateRopeConfig(rope));
  return rope;
}

struct Architecture {
  const char* gguf;
  const char* model_type;
};
constexpr Architecture kArchitectures[] = {
    {"llama", "llama"}, {"qwen2", "qwen2"}, {"qwen3", "qwen3"}, {"qwen3moe", "qwen3_moe"}};

absl::StatusOr<int64_t> Positive(const GgufReader& gguf, const std::string& key) {
  const auto value = gguf.Get<int64_t>(key);
  if (value && *value >= 1) return *value;
  return absl::InvalidArgumentError(
      absl::StrCat("value \"", key, "\" is missing or not a positive integer"));
}

absl::Status ReadExperts(const GgufReader& gguf, const std::string& prefix, ModelConfig* config) {
  const auto count = gguf.Get<int64_t>(prefix + "expert_count");
  if (config->model_type != "qwen3_moe") {
    if (count.value_or(0) == 0) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat("a mixture of experts (\"", prefix, "expert_count\") is not supported"));
  }
  MR_ASSIGN_OR_RETURN(config->experts, Positive(gguf, prefix + "expert_count"));
  MR_ASSIGN_OR_RETURN(config->experts_per_token, Positive(gguf, prefix + "expert_used_count"));
  MR_ASSIGN_OR_RETURN(config->expert_intermediate_size,
                      Positive(gguf, prefix + "expert_feed_forward_length"));
  // The file does not say; llama.cpp does so for all models of this architecture.
  config->norm_topk_prob = true;
  return absl::OkStatus();
}

absl::Status ReadSizes(const GgufReader& gguf, const std::string& prefix, ModelConfig* config) {
  const std::pair<const char*, int64_t*> sizes[] = {
      {"embedding_length", &config->hidden_size},
      {"feed_forward_length", &config->intermediate_size},
      {"block_count", &config->layers},
      {"attention.head_count", &config->heads},
      {"context_length", &config->max_position}};
  for (const auto& [key, out] : sizes) {
    MR_ASSIGN_OR_RETURN(*out, Positive(gguf, prefix + key));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> GgufModelConfig(const GgufReader& gguf) {
  ModelConfig config;
  const std::string name = gguf.Get<std::string>("general.architecture").value_or("none");
  const auto* known = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                   [&](const Architecture& a) { return name == a.gguf; });
  if (known == std::end(kArchitectures)) {
    return absl::UnimplementedError(absl::StrCat(
        "architecture \"", name, "\" is not supported (of llama, qwen2, qwen3, qwen3moe)"));
  }
  config.model_type = known->model_type;
  const std::string prefix = name + ".";
  MR_RETURN_IF_ERROR(ReadExperts(gguf, prefix, &config));
  MR_RETURN_IF_ERROR(ReadSizes(gguf, prefix, &config));
  config.kv_heads = gguf.Get<int64_t>(prefix + "attention.head_count_kv").value_or(config.heads);
  config.head_dim = gguf.Get<int64_t>(prefix + "attention.key_length")
                        .value_or(config.hidden_size / config.heads);
  config.rms_norm_eps =
      Meant(gguf.Get<double>(prefix + "attention.layer_norm_rms_epsilon").value_or(0));
  if (config.head_dim < 2 || config.head_dim > ConfigFields::kMaxDimension) {
    return absl::InvalidArgumentError(
        absl::StrCat("value \"", prefix, "attention.key_length\" is ", config.head_dim));
  }
  MR_ASSIGN_OR_RETURN(config.rope, RopeFromGguf(gguf, prefix, config));
  config.qk_norm = config.model_type == "qwen3" || config.model_type == "qwen3_moe";
  config.qkv_bias = gguf.tensors().contains("blk.0.attn_q.bias");
  config.o_bias = gguf.tensors().contains("blk.0.attn_output.bias");
  // config.json has one switch for the biases of all four projections, and none for qwen2's three.
  if (config.o_bias != (config.qkv_bias && config.model_type != "qwen2")) {
    return absl::UnimplementedError(absl::StrCat("attention biases on only some projections of a ",
                                                 config.model_type, " model are not supported"));
  }
  const auto embed = gguf.tensors().find("token_embd.weight");
  if (embed == gguf.tensors().end()) {
    return absl::InvalidArgumentError("no tensor \"token_embd.weight\"");
  }
  config.vocab_size = embed->second.shape[0];
  const auto id = [&](const char* key) {
    const int64_t value =
        gguf.Get<int64_t>(absl::StrCat("tokenizer.ggml.", key, "_token_id")).value_or(-1);
    return static_cast<int32_t>(value < 0 || value >= config.vocab_size ? -1 : value);
  };
  config.bos_id = id("bos");
  config.pad_id = id("padding");
  if (id("eos") >= 0) config.eos_ids = {id("eos")};
  return config;
}

}  // namespace millrace
