// Fields of config.json that are not known here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <sstream>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "model/model_config.h"
#include "nlohmann/json.hpp"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
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

// config.json of published models of every family, as the hub has them, and of common tools.
TEST(ModelConfig, PublishedConfigsPassWithoutRemarks) {
  const Json cases =
      Json::parse(ReadFile(std::string(MILLRACE_GOLDEN_DIR) + "/configs/published.json").value());
  for (const auto& [name, json] : cases.items()) {
    const auto config = ParseModelConfig(json.dump(), name);
    ASSERT_THAT(config, IsOk()) << name;
    EXPECT_THAT(config->ignored_fields, ElementsAre()) << name;
  }
  EXPECT_GE(cases.size(), 12u);
  const std::string models = std::string(MILLRACE_GOLDEN_DIR) + "/models";
  for (const auto& folder : std::filesystem::directory_iterator(models)) {
    for (const char* file : {"/config.json", "/config_legacy.json"}) {
      const std::string path = folder.path().string() + file;
      if (!FileExists(path)) continue;
      const auto config = ParseModelConfig(ReadFile(path).value(), path);
      ASSERT_THAT(config, IsOk());
      EXPECT_THAT(config->ignored_fields, ElementsAre()) << path;
    }
  }
  EXPECT_THAT(ParseModelConfig(
                  ModelConfigToJson(*ParseModelConfig(Experts().dump(), "config.json")), "written")
                  ->ignored_fields,
              ElementsAre());
}

TEST(ModelConfig, AnUnknownFieldIsRefusedWhereItsNameMayMeanMathsAndElseListed) {
  // Name, value, whether it is refused, whether it is listed.
  const std::tuple<const char*, Json, bool, bool> cases[] = {
      {"qk_norm_type", "layer", true, false},
      {"attention_sink_size", 4, true, false},
      {"use_gated_attention", true, true, false},
      {"residual_scale", 0.5, true, false},
      {"num_mtp_layers", 1, true, false},
      {"lm_head_multiplier", 2.0, true, false},
      {"shared_expert_gate", true, true, false},
      {"ffn_hidden_act", "relu", true, false},
      {"use_rope", false, true, false},  // off is what changes it
      {"use_gated_attention", false, false, true},
      {"attention_sink_size", 0, false, true},
      {"residual_scale", nullptr, false, false},
      {"rope_layers", Json::array(), false, true},
      {"training_notes", "run 7", false, true},
      {"company_id", 12, false, true},
      {"_anything", 1, false, false},
      {"unsloth_whatever", true, false, false},
      {"torch_dtype", "bfloat16", false, false},
      {"architectures", nullptr, false, false},
  };
  for (const auto& [name, value, refused, listed] : cases) {
    Json json = Valid();
    json[name] = value;
    const auto config = ParseModelConfig(json.dump(), "some/config.json");
    SCOPED_TRACE(absl::StrCat(name, " ", value.dump()));
    if (refused) {
      EXPECT_THAT(config, StatusIs(absl::StatusCode::kUnimplemented,
                                   HasSubstr(absl::StrCat("\"", name, "\" ", value.dump()))));
      continue;
    }
    ASSERT_THAT(config, IsOk());
    if (listed) {
      EXPECT_THAT(config->ignored_fields, ElementsAre(name));
    } else {
      EXPECT_THAT(config->ignored_fields, ElementsAre());
    }
  }
}

TEST(ModelConfig, IgnoredFieldsAreLoggedOnceForAFile) {
  const testing::TempDir dir;
  Json json = Valid();
  json["training_notes"] = "run 7";
  json["zzz"] = 1;
  dir.Write("config.json", json.dump());
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  const bool loaded = LoadModelConfig(dir.path()).ok() && LoadModelConfig(dir.path()).ok();
  spdlog::set_default_logger(before);
  EXPECT_TRUE(loaded);
  const std::string text = log.str();
  const std::string fields =
      "config.json: fields not known here have no effect: training_notes, zzz";
  EXPECT_THAT(text, HasSubstr(fields));
  EXPECT_EQ(text.find(fields), text.rfind(fields));
}

}  // namespace
}  // namespace millrace
