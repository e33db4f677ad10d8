// What is saved loads in transformers without a warning and computes the same there. Skipped where
// there is no Python with transformers (bench/peers/setup makes one).
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>

#include "model/safetensors.h"
#include "model/transformer.h"
#include "tests/model/golden_model.h"
#include "tests/model/temp_dir.h"

namespace millrace {
namespace {

using testing::Path;

template <typename T>
TensorView ViewOf(const std::vector<T>& values, const char* dtype, std::vector<int64_t> shape) {
  return {dtype, std::move(shape),
          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                              values.size() * sizeof(T))};
}

// Saves a model and what it computes of some tokens.
void SaveWithLogits(const ModelConfig& config, const std::string& dir, const std::string& dtype) {
  std::unique_ptr<Transformer> made = testing::MakeModel(config, Path::kFused);
  ASSERT_TRUE(made->Save(dir, dtype).ok());
  std::unique_ptr<Transformer> model = Transformer::Load(dir, at::kCPU).value();
  std::vector<int64_t> ids;
  std::vector<int32_t> row;
  for (int64_t i = 0; i < 40; ++i) ids.push_back((i * 7 + 3) % config.vocab_size);
  row.assign(ids.begin(), ids.end());
  c10::AutoGradMode no_grad(false);
  const at::Tensor hidden = model->Forward(testing::PackRows({row}, 0)).value();
  const at::Tensor logits = at::matmul(hidden, model->lm_head().t()).contiguous();
  const float* data = logits.const_data_ptr<float>();
  const std::vector<float> values(data, data + logits.numel());
  ASSERT_TRUE(WriteSafetensors(dir + "/check.safetensors",
                               {{"input_ids", ViewOf(ids, "I64", {1, 40})},
                                {"logits", ViewOf(values, "F32", {40, config.vocab_size})}})
                  .ok());
}

TEST(TransformersCheck, SavedModelsLoadThereWithoutAWarningAndComputeTheSame) {
  const std::string source = MILLRACE_SOURCE_DIR;
  const std::string python = source + "/.deps/peers/bin/python";
  const std::string probe = python + " -c 'import transformers, safetensors' 2>/dev/null";
  if (!std::filesystem::exists(python) || std::system(probe.c_str()) != 0) {
    GTEST_SKIP() << python << " with transformers is not there (bench/peers/setup makes it)";
  }
  const testing::TempDir dir;
  std::string command =
      "HF_HUB_OFFLINE=1 " + python + " " + source + "/tests/model/transformers_check.py";
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe"}) {
    for (const char* dtype : {"F32", "BF16"}) {
      const std::string out = dir.File(std::string(type) + "-" + dtype);
      SaveWithLogits(testing::SmallConfig(type), out, dtype);
      command += " " + out;
    }
  }
  ModelConfig windowed = testing::SmallConfig("qwen3");
  windowed.sliding_window = 5;
  windowed.window_layers = {false, true};
  SaveWithLogits(windowed, dir.File("qwen3-window"), "F32");
  command += " " + dir.File("qwen3-window");
  const int status = std::system(command.c_str());
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace millrace
