// What is saved, a checkpoint of the learner too, loads in transformers without a warning and
// computes the same there. Skipped where there is no Python with transformers (bench/peers/setup
// makes one).
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "learner/checkpoint.h"
#include "learner/optimizer.h"
#include "model/safetensors.h"
#include "model/tokenizer.h"
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

// Writes what the model of `dir` computes of some tokens into a file beside the folder; and, with a
// tokenizer, what that makes of a text.
void WriteCheck(const std::string& dir, const Tokenizer* tokenizer) {
  std::unique_ptr<Transformer> model = Transformer::Load(dir, at::kCPU).value();
  const int64_t vocab = model->config().vocab_size;
  std::vector<int64_t> ids;
  std::vector<int32_t> row;
  for (int64_t i = 0; i < 40; ++i) ids.push_back((i * 7 + 3) % vocab);
  row.assign(ids.begin(), ids.end());
  c10::AutoGradMode no_grad(false);
  const at::Tensor hidden = model->Forward(testing::PackRows({row}, 0)).value();
  const at::Tensor logits = at::matmul(hidden, model->lm_head().t()).contiguous();
  const float* data = logits.const_data_ptr<float>();
  const std::vector<float> values(data, data + logits.numel());
  std::map<std::string, TensorView> tensors = {{"input_ids", ViewOf(ids, "I64", {1, 40})},
                                               {"logits", ViewOf(values, "F32", {40, vocab})}};
  std::map<std::string, std::string> metadata;
  std::vector<int32_t> text_ids;
  if (tokenizer != nullptr) {
    const std::string text = "A naïve test: 12 + 34 = 46;  don’t you think?";
    metadata["text"] = text;
    text_ids = tokenizer->Encode(text);
    tensors["text_ids"] = ViewOf(text_ids, "I32", {static_cast<int64_t>(text_ids.size())});
  }
  ASSERT_TRUE(WriteSafetensors(dir + ".check.safetensors", tensors, metadata).ok());
}

void SaveWithLogits(const ModelConfig& config, const std::string& dir, const std::string& dtype) {
  std::unique_ptr<Transformer> made = testing::MakeModel(config, Path::kFused);
  ASSERT_TRUE(made->Save(dir, dtype).ok());
  WriteCheck(dir, nullptr);
}

// A tokenizer of Qwen3's layout with every file that one may have.
std::unique_ptr<Tokenizer> TokenizerOfManyFiles() {
  const testing::TempDir dir;
  const std::filesystem::path golden = MILLRACE_GOLDEN_DIR;
  const std::filesystem::path to = dir.path();
  const auto copy = [&](const char* file, const char* as) {
    std::filesystem::copy_file(golden / file, to / as);
  };
  std::filesystem::create_directory(to / "additional_chat_templates");
  copy("tokenizers/qwen/tokenizer.json", "tokenizer.json");
  copy("chat/qwen3.jinja", "chat_template.jinja");
  copy("chat/chatml_training.jinja", "additional_chat_templates/training.jinja");
  const std::string ends = R"("eos_token": "<|im_end|>", "pad_token": "<|endoftext|>")";
  dir.Write("special_tokens_map.json", "{" + ends + "}");
  dir.Write("tokenizer_config.json", R"({"tokenizer_class": "Qwen2Tokenizer", )" + ends + "}");
  return Tokenizer::Load(dir.path()).value();
}

// A whole checkpoint as the learner writes it, under `dir`; returns its folder.
std::string LearnersCheckpoint(const std::string& dir, const Tokenizer& tokenizer) {
  ModelConfig config = testing::SmallConfig("qwen3");
  config.vocab_size = tokenizer.vocab_size();
  config.eos_ids = {tokenizer.eos_id()};
  std::unique_ptr<Transformer> model = testing::MakeModel(config, Path::kFused);
  const auto adam =
      AdamW::Create(model->flat_parameters(), model->flat_gradients(), DecayRanges(*model), {});
  Checkpointer::Options options;
  options.dir = dir;
  std::filesystem::create_directories(dir);
  TrainerState state;
  state.step = 1;
  Checkpointer checkpointer(options);
  EXPECT_TRUE(checkpointer.Save(*model, tokenizer, adam->get(), state).ok());
  EXPECT_TRUE(checkpointer.Wait().ok());
  const std::string folder = FindLatestCheckpoint(dir).value().value();
  WriteCheck(folder, &tokenizer);
  return folder;
}

TEST(TransformersCheck, SavedModelsAndCheckpointsLoadThereWithoutAWarningAndComputeTheSame) {
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
  command += " " + LearnersCheckpoint(dir.File("bytes"), *Tokenizer::Bytes());
  command += " " + LearnersCheckpoint(dir.File("qwen"), *TokenizerOfManyFiles());
  const int status = std::system(command.c_str());
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace millrace
