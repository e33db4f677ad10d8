#include "model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "common/files.h"
#include "model/rope.h"
#include "nlohmann/json.hpp"
#include "tests/model/temp_dir.h"
#include "tests/model/valid_config.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::Experts;
using ::millrace::testing::IsOk;
using ::millrace::testing::StatusIs;
using ::millrace::testing::Valid;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

TEST(ModelConfig, ReadsBothLayoutsOfRope) {
  Json old = Valid();
  old.erase("rope_parameters");
  old["rope_theta"] = 1e6;
  old["rope_scaling"] = nullptr;
  for (const Json& json : {Valid(), old}) {
    const auto config = ParseModelConfig(json.dump(), "config.json");
    ASSERT_THAT(config, IsOk());
    EXPECT_EQ(config->rope.theta, 1e6);
    EXPECT_EQ(config->head_dim, 32);
    EXPECT_TRUE(config->qk_norm);
    EXPECT_FALSE(config->qkv_bias);
    EXPECT_THAT(config->eos_ids, ElementsAre(2));
  }
}

// Every golden folder, in both layouts.
TEST(ModelConfig, BothLayoutsOfACheckpointAreTheSameModel) {
  int compared = 0;
  const std::string models = std::string(MILLRACE_GOLDEN_DIR) + "/models";
  for (const auto& folder : std::filesystem::directory_iterator(models)) {
    const std::string legacy = folder.path().string() + "/config_legacy.json";
    if (!FileExists(legacy)) continue;
    SCOPED_TRACE(legacy);
    const std::string current = folder.path().string() + "/config.json";
    const auto now = ParseModelConfig(ReadFile(current).value(), current);
    const auto then = ParseModelConfig(ReadFile(legacy).value(), legacy);
    ASSERT_THAT(now, IsOk());
    ASSERT_THAT(then, IsOk());
    EXPECT_EQ(ModelConfigToJson(*now), ModelConfigToJson(*then));
    const auto again = ParseModelConfig(ModelConfigToJson(*now), "written");
    ASSERT_THAT(again, IsOk());
    EXPECT_EQ(ModelConfigToJson(*now), ModelConfigToJson(*again));
    ++compared;
  }
  EXPECT_GE(compared, 8);
}

TEST(Rope, FrequenciesAreThoseOfTransformers) {
  const std::string path = std::string(MILLRACE_GOLDEN_DIR) + "/models/rope.json";
  const Json cases = Json::parse(ReadFile(path).value());
  for (const Json& c : cases) {
    SCOPED_TRACE(c["rope_parameters"].dump());
    Json json = Valid();
    json["rope_parameters"] = c["rope_parameters"];
    const auto config = ParseModelConfig(json.dump(), "config.json");
    ASSERT_THAT(config, IsOk());
    EXPECT_NEAR(config->rope.attention_factor, c["attention_factor"].get<double>(), 1e-9);
    const auto got = RopeFrequencies(config->rope, c["head_dim"].get<int64_t>());
    ASSERT_EQ(got.size(), c["frequencies"].size());
    for (size_t i = 0; i < got.size(); ++i) {
      const double expected = c["frequencies"][i].get<double>();
      EXPECT_NEAR(got[i], expected, 1e-5 * expected) << i;  // the reference is in fp32
    }
  }
  EXPECT_GE(cases.size(), 6u);
}

struct WindowCase {
  const char* what;
  Json changes;
  std::vector<int64_t> windows;  // by layer
};

TEST(ModelConfig, KnowsWhichLayersHaveAWindow) {
  const WindowCase cases[] = {
      {"off", {{"use_sliding_window", false}}, {0, 0, 0}},
      {"null", {{"use_sliding_window", true}, {"sliding_window", nullptr}}, {0, 0, 0}},
      {"past the last layer", {{"use_sliding_window", true}}, {0, 0, 0}},
      {"from a layer on",
       {{"use_sliding_window", true}, {"max_window_layers", 1}},
       {0, 4096, 4096}},
      {"from the first",
       {{"use_sliding_window", true}, {"max_window_layers", 0}},
       {4096, 4096, 4096}},
      {"by layer",
       {{"use_sliding_window", true},
        {"layer_types", {"sliding_attention", "full_attention", "sliding_attention"}}},
       {4096, 0, 4096}},
      {"mistral", {{"model_type", "mistral"}, {"sliding_window", 8}}, {8, 8, 8}},
      {"mistral null", {{"model_type", "mistral"}, {"sliding_window", nullptr}}, {0, 0, 0}},
  };
  for (const WindowCase& c : cases) {
    SCOPED_TRACE(c.what);
    Json json = Valid();
    json.erase("architectures");
    json.update(c.changes);
    const auto config = ParseModelConfig(json.dump(), "config.json");
    ASSERT_THAT(config, IsOk());
    const auto again = ParseModelConfig(ModelConfigToJson(*config), "written");
    ASSERT_THAT(again, IsOk());
    for (int64_t l = 0; l < 3; ++l) {
      EXPECT_EQ(config->Window(l), c.windows[l]) << l;
      EXPECT_EQ(again->Window(l), c.windows[l]) << l;
    }
  }
  Json json = Valid();
  json["model_type"] = "mistral";
  json.erase("architectures");
  json.erase("sliding_window");
  EXPECT_EQ(ParseModelConfig(json.dump(), "config.json")->Window(2), 4096);
}

TEST(ModelConfig, KnowsWhichLayersHaveExperts) {
  Json json = Experts();
  json["num_hidden_layers"] = 6;
  json["decoder_sparse_step"] = 2;
  json["mlp_only_layers"] = {3};
  const auto config = ParseModelConfig(json.dump(), "config.json");
  ASSERT_THAT(config, IsOk());
  std::vector<int64_t> with;
  for (int64_t l = 0; l < 6; ++l) {
    if (config->HasExperts(l)) with.push_back(l);
  }
  EXPECT_THAT(with, ElementsAre(1, 5));
  int64_t routers = 0, downs = 0;
  for (const ParameterShape& p : ParameterShapes(*config)) {
    routers += p.name.ends_with("mlp.gate.weight") ? 1 : 0;
    downs += p.name.find(".experts.7.down_proj") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(routers, 2);
  EXPECT_EQ(downs, 2);
}

TEST(ModelConfig, ImpossibleExpertsAreNamed) {
  const std::pair<const char*, Json> cases[] = {{"num_experts", 0},
                                                {"num_experts", 100000},
                                                {"num_experts_per_tok", 9},
                                                {"num_experts_per_tok", nullptr},
                                                {"moe_intermediate_size", -1},
                                                {"mlp_only_layers", {3}},
                                                {"mlp_only_layers", {"a"}},
                                                {"mlp_only_layers", 1},
                                                {"norm_topk_prob", "yes"}};
  for (const auto& [name, value] : cases) {
    Json json = Experts();
    json[name] = value;
    EXPECT_THAT(ParseModelConfig(json.dump(), "config.json"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)))
        << value;
  }
  Json json = Experts();  // either alone would do
  json["num_hidden_layers"] = 10000;
  json["num_experts"] = 4096;
  EXPECT_THAT(ParseModelConfig(json.dump(), "config.json"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more than the limit")));
}

TEST(ModelConfig, WhatItWritesReadsBackTheSame) {
  for (const char* type : {"llama", "qwen2", "qwen3"}) {
    Json json = Valid();
    json["model_type"] = type;
    json.erase("architectures");
    if (std::string(type) == "llama") json.erase("sliding_window");
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
      {"model_type", "mixtral", kNot, "of llama, mistral, qwen2, qwen3, qwen3_moe"},
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
      {"use_sliding_window", "yes", kBad, "use_sliding_window"},
      {"layer_types", {"full_attention", "sliding_attention"}, kBad, "3 entries"},
      {"layer_types",
       {"full_attention", "full_attention", "sliding_attention"},
       kBad,
       "sliding_attention for layer 2"},
      {"layer_types",
       {"full_attention", "full_attention", "linear_attention"},
       kNot,
       "linear_attention"},
      {"rope_scaling", {{"rope_type", "longrope"}, {"factor", 4}}, kNot, "longrope"},
      {"rope_scaling", {{"type", "dynamic"}, {"factor", 2}}, kNot, "dynamic"},
      {"rope_scaling", {{"type", "linear"}, {"factor", 2}}, kBad, "\"rope_scaling\" says linear"},
      {"rope_parameters", {{"rope_type", "llama3"}, {"rope_theta", 1e6}}, kBad, "factor"},
      {"rope_parameters", {{"rope_type", "linear"}, {"factor", 0.5}}, kBad, "factor"},
      {"rope_parameters",
       {{"rope_type", "llama3"},
        {"factor", 8},
        {"low_freq_factor", 4},
        {"high_freq_factor", 1},
        {"original_max_position_embeddings", 8192}},
       kBad,
       "high_freq_factor"},
      {"rope_parameters", {{"rope_type", "yarn"}, {"factor", -4}}, kBad, "factor"},
      {"rope_parameters", {{"full_attention", {{"rope_theta", 1e6}}}}, kNot, "full_attention"},
      {"final_logit_softcapping", 30.0, kNot, "final_logit_softcapping"},
      {"residual_multiplier", 0.22, kNot, "residual_multiplier"},
      {"no_rope_layers", {1, 1, 0}, kNot, "no_rope_layers"},
      {"auto_map", {{"AutoModelForCausalLM", "modeling.Own"}}, kNot, "auto_map"},
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
