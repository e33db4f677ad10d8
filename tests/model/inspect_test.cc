#include "model/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/files.h"
#include "tests/model/temp_dir.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::IsOk;
using ::millrace::testing::StatusIs;
using ::millrace::testing::TempDir;
using ::testing::HasSubstr;
using Json = nlohmann::json;

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
}

}  // namespace
}  // namespace millrace
