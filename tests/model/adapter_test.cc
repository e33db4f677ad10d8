// PEFT adapters merged into their base model.
#include "model/adapter.h"

#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "common/files.h"
#include "tests/model/golden_model.h"
#include "tests/model/temp_dir.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::MaxDifference;
using ::millrace::testing::Path;
using ::millrace::testing::StatusIs;
using ::millrace::testing::TempDir;
using ::testing::HasSubstr;
using Json = nlohmann::json;
using Tensors = std::map<std::string, TensorView>;

at::Tensor Logits(Transformer& model, const std::vector<std::vector<int32_t>>& rows) {
  c10::AutoGradMode no_grad(false);
  return at::matmul(model.Forward(testing::PackRows(rows, 0)).value(), model.lm_head().t());
}

// Mean next-token cross entropy of rows whose logits stand end to end.
double Loss(const at::Tensor& logits, const std::vector<std::vector<int32_t>>& rows) {
  const at::Tensor logprobs = at::log_softmax(logits.to(at::kCPU), -1);
  double sum = 0;
  int64_t count = 0, base = 0;
  for (const std::vector<int32_t>& row : rows) {
    for (size_t t = 0; t + 1 < row.size(); ++t, ++count) {
      sum -= logprobs[base + static_cast<int64_t>(t)][row[t + 1]].item<double>();
    }
    base += static_cast<int64_t>(row.size());
  }
  return sum / static_cast<double>(count);
}

TEST(Adapter, MergedLogitsAndLossAreThoseOfTheAdaptedModel) {
  for (const char* name : {"lora_qwen3_tied", "rslora_qwen3_tied"}) {
    const testing::GoldenCase golden = testing::ReadGoldenCase(name);
    for (const Path path : {Path::kFused, Path::kFakeDevice}) {
      std::unique_ptr<Transformer> model = testing::LoadGolden(name, path);
      ASSERT_NE(model, nullptr);
      const at::Tensor logits = Logits(*model, golden.rows);
      EXPECT_LT(MaxDifference(logits, at::cat(golden.logits, 0)), 2e-4) << name;
      EXPECT_NEAR(Loss(logits, golden.rows), golden.json["loss"].get<double>(), 1e-4) << name;
    }
    std::unique_ptr<Transformer> base = testing::LoadGolden("qwen3_tied", Path::kFused);
    EXPECT_GT(MaxDifference(Logits(*base, golden.rows), at::cat(golden.logits, 0)), 1e-2) << name;
  }
}

TEST(Adapter, ItsConfigAndTokenizerAreTheBases) {
  const std::string dir = testing::GoldenModelDir("lora_qwen3_tied");
  EXPECT_TRUE(IsAdapterDir(dir));
  EXPECT_EQ(ModelConfigToJson(LoadModelConfig(dir).value()),
            ModelConfigToJson(LoadModelConfig(testing::GoldenModelDir("qwen3_tied")).value()));
  EXPECT_THAT(TokenizerDir(dir).value(), HasSubstr("qwen3_tied"));
  EXPECT_EQ(BaseModelDir(testing::GoldenModelDir("qwen3_tied")).value(),
            testing::GoldenModelDir("qwen3_tied"));
}

class BrokenAdapter : public ::testing::Test {
 protected:
  // The golden adapter, edited, beside its base.
  absl::Status Load(const std::function<void(Json&)>& edit,
                    const std::function<void(Tensors&)>& spoil) {
    const std::string from = testing::GoldenModelDir("lora_qwen3_tied");
    Json config = Json::parse(ReadFile(JoinPath(from, "adapter_config.json")).value());
    config["base_model_name_or_path"] = testing::GoldenModelDir("qwen3_tied");
    if (edit) edit(config);
    dir_.Write("adapter_config.json", config.dump());
    const auto reader =
        SafetensorsReader::Open(JoinPath(from, "adapter_model.safetensors")).value();
    Tensors tensors(reader.tensors().begin(), reader.tensors().end());
    if (spoil) spoil(tensors);
    EXPECT_TRUE(WriteSafetensors(dir_.File("adapter_model.safetensors"), tensors).ok());
    return Transformer::Load(dir_.path(), at::kCPU).status();
  }
  const TempDir dir_;
};

TEST_F(BrokenAdapter, OptionsThatChangeTheMathsAreRefusedByName) {
  EXPECT_TRUE(Load({}, {}).ok());
  const std::pair<const char*, Json> cases[] = {
      {"peft_type", "IA3"},
      {"use_dora", true},
      {"bias", "all"},
      {"lora_bias", true},
      {"fan_in_fan_out", true},
      {"modules_to_save", {"lm_head"}},
      {"layer_replication", {{0, 2}}},
      {"alpha_pattern", {{"layers.[0-9]+.q_proj", 4}}},
  };
  for (const auto& [name, value] : cases) {
    EXPECT_THAT(Load([&, n = name, v = value](Json& c) { c[n] = v; }, {}),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(name)));
  }
}

TEST_F(BrokenAdapter, TensorsWithoutAPlaceAreNamed) {
  const std::string layer = "base_model.model.model.layers.0.mlp.";
  const std::string a = layer + "up_proj.lora_A.weight", b = layer + "up_proj.lora_B.weight";
  const struct {
    std::function<void(Tensors&)> spoil;
    const char* named;
  } cases[] = {
      {[&](Tensors& t) { t.erase(a); }, "do not fit model.layers.0.mlp.up_proj.weight"},
      {[&](Tensors& t) { t.erase(b); }, "do not fit model.layers.0.mlp.up_proj.weight"},
      {[&](Tensors& t) {
         t[a].shape = {64, 4};
       },
       "lora_A (64, 4)"},
      {[&](Tensors& t) { t[layer + "side_proj.lora_A.weight"] = t[a]; }, "side_proj"},
      {[&](Tensors& t) { t["base_model.model.lm_head.lora_A.weight"] = t[a]; }, "lm_head"},
      {[&](Tensors& t) { t["base_model.model.model.embed_tokens.lora_embedding_A"] = t[a]; },
       "embed_tokens"},
      {[&](Tensors& t) { t.clear(); }, "holds no LoRA tensors"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(Load({}, c.spoil),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.named)));
  }
}

TEST_F(BrokenAdapter, AMissingBaseIsNamed) {
  EXPECT_THAT(Load([](Json& c) { c["base_model_name_or_path"] = "somebody/a-model"; }, {}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"somebody/a-model\"")));
}

}  // namespace
}  // namespace millrace
