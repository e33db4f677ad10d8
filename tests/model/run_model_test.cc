#include "model/run_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/files.h"
#include "nlohmann/json.hpp"
#include "tests/model/temp_dir.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::IsOk;
using ::millrace::testing::StatusIs;
using ::testing::HasSubstr;
using Json = nlohmann::json;

const std::string kGolden = MILLRACE_GOLDEN_DIR;

Json GoldenConfig() {
  return Json::parse(ReadFile(kGolden + "/models/qwen3_tied/config.json").value());
}

TEST(RunModel, ATokenizerWithMoreIdsThanTheEmbeddingHasRowsIsRefused) {
  const testing::TempDir dir;
  dir.Write("tokenizer.json", ReadFile(kGolden + "/tokenizers/gpt2_digits/tokenizer.json").value());
  Json config = GoldenConfig();
  RunConfig::Model model;
  model.path = dir.path();
  dir.Write("config.json", config.dump());
  EXPECT_THAT(LoadRunModel(model),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("only 512")));
  // More rows than ids are usual.
  config["vocab_size"] = 100000;
  dir.Write("config.json", config.dump());
  EXPECT_THAT(LoadRunModel(model), IsOk());
}

TEST(RunModel, AnAdaptersTokenizerIsItsBasesUnlessItHasItsOwn) {
  const testing::TempDir base, adapter;
  const std::string tokenizer =
      ReadFile(kGolden + "/tokenizers/gpt2_digits/tokenizer.json").value();
  Json config = GoldenConfig();
  config["vocab_size"] = 100000;
  base.Write("config.json", config.dump());
  adapter.Write("adapter_config.json",
                Json{{"peft_type", "LORA"}, {"base_model_name_or_path", base.path()}}.dump());
  RunConfig::Model model;
  model.path = adapter.path();
  EXPECT_THAT(LoadRunModel(model),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(base.path() + "/tokenizer.json")));
  base.Write("tokenizer.json", tokenizer);
  EXPECT_THAT(LoadRunModel(model), IsOk());
  adapter.Write("tokenizer.json", "{");
  EXPECT_FALSE(LoadRunModel(model).ok());
}

}  // namespace
}  // namespace millrace
