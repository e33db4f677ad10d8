#include "model/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include "common/files.h"
#include "model/gguf_import.h"
#include "tests/model/gguf_builder.h"
#include "tests/model/temp_dir.h"
#include "tests/model/tiny_gguf.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::Floats;
using ::millrace::testing::GgufBuilder;
using ::millrace::testing::IsOk;
using ::millrace::testing::kHidden;
using ::millrace::testing::kVocab;
using ::millrace::testing::Raw;
using ::millrace::testing::StatusIs;
using ::millrace::testing::TempDir;
using ::millrace::testing::TinyLlama;
using ::testing::HasSubstr;
using Json = nlohmann::json;
namespace fs = std::filesystem;

std::string Golden(const std::string& name) {
  return std::string(MILLRACE_GOLDEN_DIR) + "/models/" + name;
}

TEST(Inspect, SaysOfEveryGoldenFolderWhatItIs) {
  struct Case {
    const char* name;
    const char* architecture;
    const char* format;
    const char* dtype;
    const char* rope;
    int64_t files;
  };
  const Case cases[] = {
      {"llama3_rope", "llama", "huggingface", "F32", "llama3", 1},
      {"qwen2_yarn", "qwen2", "huggingface", "F32", "yarn", 1},
      {"mistral_swa", "mistral", "huggingface", "F32", "default", 1},
      {"qwen3_tied_bf16", "qwen3", "huggingface", "BF16", "default", 1},
      {"qwen3_untied_sharded", "qwen3", "huggingface", "F32", "default", 6},
      {"lora_qwen3_tied", "qwen3", "adapter", "F32", "default", 1},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto summary = InspectModel(Golden(c.name));
    ASSERT_THAT(summary, IsOk());
    EXPECT_EQ(summary->unsupported, "");
    EXPECT_EQ(summary->architecture, c.architecture);
    EXPECT_EQ(summary->format, c.format);
    EXPECT_EQ(summary->rope, c.rope);
    EXPECT_EQ(summary->files, c.files);
    EXPECT_EQ(summary->vocab_size, 512);
    EXPECT_EQ(summary->context, 256);
    ASSERT_EQ(summary->dtypes.size(), 1u);
    EXPECT_EQ(summary->dtypes.begin()->first, c.dtype);
    EXPECT_EQ(summary->dtypes.begin()->second, summary->parameters);
    const int64_t width = std::string(c.dtype) == "BF16" ? 2 : 4;
    EXPECT_EQ(summary->tensor_bytes, summary->parameters * width);
    EXPECT_GT(summary->file_bytes, summary->tensor_bytes);
    EXPECT_EQ(summary->active_parameters, summary->parameters);
    EXPECT_EQ(summary->train_bytes, 16 * summary->parameters);
    // Once, and the rows of an embedding that is the head too.
    const int64_t rows = summary->tied ? summary->vocab_size * summary->hidden_size : 0;
    EXPECT_EQ(summary->rollout_bytes, 4 * (summary->parameters + rows));
  }
}

TEST(Inspect, CountsTheExpertsThatOneTokenUses) {
  const auto summary = InspectModel(Golden("qwen3_moe"));
  ASSERT_THAT(summary, IsOk());
  EXPECT_EQ(summary->experts, 8);
  EXPECT_EQ(summary->experts_per_token, 2);
  // Two layers, six idle experts in each, three matrices of 32 x 64.
  EXPECT_EQ(summary->parameters - summary->active_parameters, 2 * 6 * 3 * 32 * 64);
  // Two layers, keys and values, two heads of 16 floats.
  EXPECT_EQ(summary->kv_bytes_per_token, 2 * 2 * 2 * 16 * 4);
  EXPECT_EQ(summary->rollout_bytes, 4 * summary->parameters);  // decoded without a packed copy
}

TEST(Inspect, NamesWhatKeepsAModelFromBeingLoadedAndShowsTheRest) {
  const TempDir dir;
  Json config = Json::parse(ReadFile(Golden("qwen3_untied") + "/config.json").value());
  config["model_type"] = "gemma9";
  dir.Write("config.json", config.dump());
  dir.Write("model.safetensors", ReadFile(Golden("qwen3_untied") + "/model.safetensors").value());
  const auto odd = InspectModel(dir.path());
  ASSERT_THAT(odd, IsOk());
  EXPECT_THAT(odd->unsupported, HasSubstr("gemma9"));
  EXPECT_EQ(odd->architecture, "gemma9");
  EXPECT_EQ(odd->vocab_size, 512);
  EXPECT_GT(odd->parameters, 0);
  EXPECT_EQ(odd->active_parameters, odd->parameters);
  const Json json = ModelSummaryToJson(*odd);
  EXPECT_EQ(json["supported"], false);
  EXPECT_THAT(json["unsupported"].get<std::string>(), HasSubstr("gemma9"));
}

TEST(Inspect, EveryGoldenModelIsSupported) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(Golden(""))) {
    if (!entry.is_directory()) continue;
    const auto summary = InspectModel(entry.path().string());
    ASSERT_THAT(summary, IsOk()) << entry.path();
    EXPECT_EQ(summary->unsupported, "") << entry.path();
    EXPECT_GT(summary->train_bytes, 0) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 14);
}

// A copy of golden model llama_untied whose config differs.
void WriteModel(const TempDir& dir, const Json& changes) {
  Json config = Json::parse(ReadFile(Golden("llama_untied") + "/config.json").value());
  config.update(changes);
  dir.Write("config.json", config.dump());
  dir.Write("model.safetensors", ReadFile(Golden("llama_untied") + "/model.safetensors").value());
}

TEST(Inspect, AConfigThatContradictsTheTensorsIsNotSupported) {
  const std::pair<Json, const char*> cases[] = {
      {{{"num_hidden_layers", 4}, {"intermediate_size", 256}},
       "9 tensors are missing: model.layers.3."},
      {{{"num_hidden_layers", 2}}, "9 tensors are not part of a llama model: model.layers.2."},
      {{{"num_hidden_layers", 40}}, " and 321 more"},
      {{{"intermediate_size", 256}},
       "model.layers.0.mlp.gate_proj.weight has shape (128, 64), config.json says (256, 64)"},
      {{{"vocab_size", 600}}, "model.embed_tokens.weight has shape (512, 64)"}};
  for (const auto& [changes, named] : cases) {
    const TempDir dir;
    WriteModel(dir, changes);
    const auto summary = InspectModel(dir.path());
    ASSERT_THAT(summary, IsOk());
    EXPECT_THAT(summary->unsupported, HasSubstr(named));
    EXPECT_THAT(summary->unsupported, HasSubstr(dir.path()));
    // What the tensors are still stands; what they would be by the config doesn't.
    EXPECT_EQ(summary->parameters, 176576);
    EXPECT_EQ(summary->active_parameters, summary->parameters);
    EXPECT_EQ(summary->train_bytes, 0);
    EXPECT_EQ(ModelSummaryToJson(*summary)["supported"], false);
  }
}

TEST(Inspect, ATokenizerThatCannotBeUsedIsNamed) {
  const TempDir dir;
  WriteModel(dir, Json::object());
  EXPECT_EQ(InspectModel(dir.path())->unsupported, "");
  const std::string tokenizer =
      std::string(MILLRACE_GOLDEN_DIR) + "/tokenizers/gpt2_digits/tokenizer.json";
  dir.Write("tokenizer.json", ReadFile(tokenizer).value());
  const auto large = InspectModel(dir.path());
  ASSERT_THAT(large, IsOk());
  EXPECT_GT(large->tokenizer_size, 512);
  EXPECT_THAT(large->unsupported,
              HasSubstr(dir.path() + "/tokenizer.json: the tokenizer has " +
                        std::to_string(large->tokenizer_size) + " ids, the embedding of " +
                        dir.path() + " only 512 rows"));
  EXPECT_GT(large->train_bytes, 0);
  dir.Write("tokenizer.json", "{");
  EXPECT_THAT(InspectModel(dir.path())->unsupported, HasSubstr(dir.path() + "/tokenizer.json"));
}

TEST(Inspect, SaysOfAGgufFileWhatTheImportSays) {
  const auto replace = [](std::string* text, const std::string& from, const std::string& to) {
    const size_t at = text->find(from);
    ASSERT_NE(at, std::string::npos);
    text->replace(at, from.size(), to);
  };
  const std::pair<std::function<void(GgufBuilder*)>, const char*> cases[] = {
      {[](GgufBuilder*) {}, ""},
      {[&](GgufBuilder* b) { replace(&b->values, "gpt2", "bert"); },
       "tokenizer \"bert\" is not supported"},
      {[&](GgufBuilder* b) { replace(&b->values, "smollm", "klamms"); }, "klamms"},
      {[&](GgufBuilder* b) {
         replace(&b->infos, Raw<uint64_t>(kHidden) + Raw<uint64_t>(kVocab),
                 Raw<uint64_t>(kHidden) + Raw<uint64_t>(kVocab - 1));
       },
       "tokenizer.ggml.tokens: the tokenizer has 259 ids, the embedding of this file "
       "(token_embd.weight) only 258 rows"},
      {[](GgufBuilder* b) { b->Tensor("blk.1.attn_norm.weight", {8}, 0, Floats(8, 0)); },
       "blk.1.attn_norm"},
      {[](GgufBuilder* b) { b->Tensor("blk.0.x.weight", {256}, 20, std::string(144, 'x')); },
       "IQ4_NL"},
      {[](GgufBuilder* b) { b->Integer("llama.expert_count", 8); }, "experts"},
  };
  for (const auto& [spoil, named] : cases) {
    const TempDir dir;
    GgufBuilder b = TinyLlama();
    spoil(&b);
    const std::string path = dir.Write("m.gguf", b.File());
    const auto summary = InspectModel(path);
    ASSERT_THAT(summary, IsOk());
    EXPECT_THAT(summary->unsupported, HasSubstr(named));
    const absl::Status imported = ImportGguf(path, dir.File("out"), {});
    EXPECT_EQ(imported.ok(), summary->unsupported.empty()) << named;
    if (!imported.ok()) {
      EXPECT_EQ(std::string(imported.message()), path + ": " + summary->unsupported);
    }
  }
}

TEST(Inspect, ReadsGgufFiles) {
  const auto types = InspectModel(std::string(MILLRACE_GOLDEN_DIR) + "/gguf/types.gguf");
  ASSERT_THAT(types, IsOk());
  EXPECT_EQ(types->format, "gguf");
  EXPECT_EQ(types->architecture, "llama");
  EXPECT_THAT(types->unsupported, HasSubstr("llama.embedding_length"));
  EXPECT_EQ(types->dtypes.size(), 13u);
  EXPECT_EQ(types->dtypes.at("Q4_K"), 1024);
}

TEST(Inspect, RefusesWhatIsNoModel) {
  const TempDir dir;
  EXPECT_THAT(InspectModel(dir.File("none")), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(InspectModel(dir.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("config.json")));
  EXPECT_THAT(InspectModel(dir.Write("m.gguf", "GGUF")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("m.gguf")));
  const std::string folder = Golden("llama_untied");
  EXPECT_THAT(
      InspectModel(folder + "/model.safetensors"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("give its folder (" + folder + ")")));
}

}  // namespace
}  // namespace millrace
