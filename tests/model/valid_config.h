// Texts of config.json that are valid, for tests to change.
#ifndef MILLRACE_TESTS_MODEL_VALID_CONFIG_H_
#define MILLRACE_TESTS_MODEL_VALID_CONFIG_H_

#include "nlohmann/json.hpp"

namespace millrace::testing {

inline nlohmann::json Valid() {
  return {{"architectures", {"Qwen3ForCausalLM"}},
          {"model_type", "qwen3"},
          {"hidden_act", "silu"},
          {"vocab_size", 512},
          {"hidden_size", 64},
          {"intermediate_size", 128},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 32},
          {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-6},
          {"rope_parameters", {{"rope_theta", 1e6}, {"rope_type", "default"}}},
          {"sliding_window", 4096},
          {"use_sliding_window", false},
          {"tie_word_embeddings", true},
          {"eos_token_id", 2}};
}

inline nlohmann::json Experts() {
  nlohmann::json json = Valid();
  json["architectures"] = {"Qwen3MoeForCausalLM"};
  json["model_type"] = "qwen3_moe";
  json["num_experts"] = 8;
  json["num_experts_per_tok"] = 2;
  json["moe_intermediate_size"] = 32;
  json["norm_topk_prob"] = true;
  return json;
}

}  // namespace millrace::testing

#endif  // MILLRACE_TESTS_MODEL_VALID_CONFIG_H_
