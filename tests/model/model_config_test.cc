#include "model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "tests/model/temp_dir.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::IsOk;
using ::millrace::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Json Valid() {
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

TEST(ModelConfig, ReadsBothLayoutsOfRope) {
  Json old = Valid();
  old.erase("rope_parameters");
  old["rope_theta"] = 1e6;
  old["rope_scaling"] = nullptr;
  for (const Json& json : {Valid(), old}) {
    const auto config = ParseModelConfig(json.dump(), "config.json");
    ASSERT_THAT(config, IsOk());
    EXPECT_EQ(config->rope_theta, 1e6);
    EXPECT_EQ(config->head_dim, 32);
    EXPECT_TRUE(config->qk_norm);
    EXPECT_FALSE(config->qkv_bias);
    EXPECT_THAT(config->eos_ids, ElementsAre(2));
  }
}

TEST(ModelConfig, WhatItWritesReadsBackTheSame) {
  for (const char* type : {"llama", "qwen2", "qwen3"}) {
    Json json = Valid();
    json["model_type"] = type;
    json.erase("architectures");
    json["attention_bias"] = std::string(type) == "llama";
    json["eos_token_id"] = {2, 7};
    const auto first = ParseModelConfig(json.dump(), "config.json");
    ASSERT_THAT(first, IsOk());
    const auto second = ParseModelConfig(ModelConfigToJson(*first), "config.json");
    ASSERT_THAT(second, IsOk());
    EXPECT_EQ(ModelConfigToJson(*first), ModelConfigToJson(*second));
    EXPECT_EQ(ParameterShapes(*first).size(), ParameterShapes(*second).size());
    EXPECT_EQ(first->qkv_bias, std::string(type) != "qwen3");
    EXPECT_EQ(second->o_bias, std::string(type) == "llama");
  }
}

struct BadField {
  const char* field;
  Json value;  // discarded = the field is taken out
  absl::StatusCode code;
  const char* named;
};

TEST(ModelConfig, NamesTheFieldThatIsWrongOrUnsupported) {
  const Json gone(Json::value_t::discarded);
  constexpr auto kBad = absl::StatusCode::kInvalidArgument;
  constexpr auto kNot = absl::StatusCode::kUnimplemented;
  const BadField cases[] = {
      {"model_type", gone, kBad, "model_type"},
      {"model_type", "gemma3", kNot, "gemma3"},
      {"model_type", "qwen3_moe", kNot, "qwen3_moe"},
      {"architectures", {"Qwen3ForSequenceClassification"}, kNot, "SequenceClassification"},
      {"vocab_size", gone, kBad, "vocab_size"},
      {"vocab_size", 0, kBad, "vocab_size"},
      {"vocab_size", -5, kBad, "vocab_size"},
      {"vocab_size", 3.5, kBad, "vocab_size"},
      {"hidden_size", "64", kBad, "hidden_size"},
      {"hidden_size", uint64_t{1} << 63, kBad, "hidden_size"},
      {"num_hidden_layers", 1000000, kBad, "num_hidden_layers"},
      {"num_attention_heads", gone, kBad, "num_attention_heads"},
      {"num_key_value_heads", gone, kBad, "num_key_value_heads"},
      {"num_key_value_heads", 3, kBad, "num_key_value_heads"},
      {"head_dim", gone, kBad, "head_dim"},
      {"head_dim", 31, kBad, "head_dim"},
      {"max_position_embeddings", gone, kBad, "max_position_embeddings"},
      {"rms_norm_eps", 0, kBad, "rms_norm_eps"},
      {"rms_norm_eps", "small", kBad, "rms_norm_eps"},
      {"rope_theta", 5e5, kBad, "rope_theta"},  // rope_parameters says otherwise
      {"tie_word_embeddings", "yes", kBad, "tie_word_embeddings"},
      {"eos_token_id", 512, kBad, "eos_token_id"},
      {"eos_token_id", {1, -2}, kBad, "eos_token_id"},
      {"hidden_act", "gelu", kNot, "gelu"},
      {"mlp_bias", true, kNot, "mlp_bias"},
      {"num_experts", 8, kNot, "num_experts"},
      {"num_local_experts", 8, kNot, "num_local_experts"},
      {"use_sliding_window", true, kNot, "sliding_window"},
      {"layer_types", {"full_attention", "sliding_attention"}, kNot, "sliding_attention"},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}, kNot, "yarn"},
      {"rope_scaling", {{"type", "linear"}, {"factor", 2}}, kNot, "linear"},
      {"rope_parameters", {{"rope_type", "llama3"}, {"rope_theta", 1e6}}, kNot, "llama3"},
      {"rope_parameters", "default", kBad, "rope_parameters"},
      {"partial_rotary_factor", 0.5, kNot, "partial_rotary_factor"},
      {"quantization_config", {{"bits", 4}}, kNot, "quantization_config"},
  };
  for (const BadField& c : cases) {
    Json json = Valid();
    if (c.value.is_discarded()) {
      json.erase(c.field);
    } else {
      json[c.field] = c.value;
    }
    SCOPED_TRACE(json[c.field].dump());
    const auto config = ParseModelConfig(json.dump(), "some/config.json");
    EXPECT_THAT(config, StatusIs(c.code, HasSubstr(c.named)));
    EXPECT_THAT(config, StatusIs(c.code, HasSubstr("some/config.json")));
  }
}

TEST(ModelConfig, RefusesTextThatIsNoObject) {
  for (const char* text : {"", "{", "[1]", "null", "{\"model_type\": \"llama\""}) {
    EXPECT_THAT(ParseModelConfig(text, "config.json"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("config.json")));
  }
}

TEST(ModelConfig, ASlidingWindowOfLlamaIsRefused) {
  Json json = Valid();
  json["model_type"] = "llama";
  json.erase("architectures");
  json.erase("use_sliding_window");
  EXPECT_THAT(ParseModelConfig(json.dump(), "config.json"),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("sliding_window")));
}

TEST(ModelConfig, HeadDimOfLlamaFollowsFromTheHiddenSize) {
  Json json = Valid();
  json["model_type"] = "llama";
  json.erase("architectures");
  json.erase("head_dim");
  json.erase("sliding_window");
  const auto config = ParseModelConfig(json.dump(), "config.json");
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->head_dim, 16);
  json["hidden_size"] = 66;
  EXPECT_THAT(ParseModelConfig(json.dump(), "config.json"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("head_dim")));
}

TEST(ModelConfig, EosIdsAreThoseOfBothFiles) {
  const testing::TempDir dir;
  EXPECT_THAT(LoadModelConfig(dir.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("config.json")));
  dir.Write("config.json", Valid().dump());
  dir.Write("generation_config.json", R"({"eos_token_id": [2, 5]})");
  const auto config = LoadModelConfig(dir.path());
  ASSERT_THAT(config, IsOk());
  EXPECT_THAT(config->eos_ids, ElementsAre(2, 5));
}

TEST(ModelConfig, ParametersComeInAFixedOrder) {
  Json json = Valid();
  json["num_hidden_layers"] = 1;
  json["tie_word_embeddings"] = false;
  json["attention_bias"] = true;
  const auto config = ParseModelConfig(json.dump(), "config.json");
  ASSERT_THAT(config, IsOk());
  std::vector<std::string> names;
  for (const ParameterShape& p : ParameterShapes(*config)) {
    names.push_back(p.name + " " + Json(p.shape).dump());
  }
  const std::string layer = "model.layers.0.";
  EXPECT_THAT(
      names,
      ElementsAre(
          "model.embed_tokens.weight [512,64]", layer + "input_layernorm.weight [64]",
          layer + "self_attn.q_proj.weight [128,64]", layer + "self_attn.k_proj.weight [64,64]",
          layer + "self_attn.v_proj.weight [64,64]", layer + "self_attn.q_proj.bias [128]",
          layer + "self_attn.k_proj.bias [64]", layer + "self_attn.v_proj.bias [64]",
          layer + "self_attn.o_proj.weight [64,128]", layer + "self_attn.o_proj.bias [64]",
          layer + "self_attn.q_norm.weight [32]", layer + "self_attn.k_norm.weight [32]",
          layer + "post_attention_layernorm.weight [64]", layer + "mlp.gate_proj.weight [128,64]",
          layer + "mlp.up_proj.weight [128,64]", layer + "mlp.down_proj.weight [64,128]",
          "model.norm.weight [64]", "lm_head.weight [512,64]"));
}

}  // namespace
}  // namespace millrace
