#include "cli/local_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/load_bar.h"
#include "cli/machine_check.h"
#include "cli/run_dir.h"
#include "common/files.h"
#include "common/process.h"
#include "common/status_macros.h"
#include "model/adapter.h"
#include "model/kv_cache.h"
#include "model/model_checks.h"
#include "model/model_config.h"
#include "model/torch_status.h"
#include "model/transformer.h"

namespace millrace {
namespace {

constexpr int32_t kByteVocabulary = 259;  // Tokenizer::Bytes()
constexpr int64_t kUsualKvTokens = 4096;

// Tokens of one sequence. On the CPU the cache takes memory as it is written, elsewhere at once.
int64_t LongestSequence(const ModelConfig& config, const at::Device& device) {
  int64_t most = kUsualKvTokens;
  if (device.is_cpu()) {
    const auto token_bytes = static_cast<int64_t>(sizeof(float)) * config.KvElementsPerToken();
    most = std::max(most, ThisMachine().memory_bytes / 4 / token_bytes);
  }
  return std::min(config.max_position, most);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadModelTokenizer(const std::string& model_dir) {
  MR_ASSIGN_OR_RETURN(const std::string tokenizer_dir, TokenizerDir(model_dir));
  MR_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Tokenizer::Load(tokenizer_dir));
  MR_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(model_dir));
  MR_RETURN_IF_ERROR(CheckTokenizerSize(*tokenizer, tokenizer_dir, config, model_dir));
  return tokenizer;
}

absl::StatusOr<LocalModel> LoadLocalModel(const std::string& run_or_model_dir,
                                          const LocalModelOptions& options) {
  LocalModel model;
  MR_ASSIGN_OR_RETURN(model.dir, FindModelDir(run_or_model_dir));
  MR_ASSIGN_OR_RETURN(model.tokenizer, LoadModelTokenizer(model.dir));
  MR_ASSIGN_OR_RETURN(const at::Device device,
                      CatchTorch("--device", [&options]() -> absl::StatusOr<at::Device> {
                        return at::Device(options.device);
                      }));
  LoadBar bar("loading " + model.dir);
  MR_ASSIGN_OR_RETURN(
      std::unique_ptr<Transformer> transformer,
      Transformer::Load(model.dir, device, {options.progress ? options.progress : bar.callback()}));
  const ModelConfig& config = transformer->config();
  model.chat = SpeaksChat(*model.tokenizer);
  model.stop_ids = StopIds(*model.tokenizer, config.eos_ids);
  Engine::Options engine;
  engine.max_batch = options.max_batch;
  engine.kv_tokens = options.kv_tokens > 0 ? options.kv_tokens : LongestSequence(config, device);
  if (options.least_kv_tokens) {
    engine.kv_tokens =
        std::max(engine.kv_tokens, options.least_kv_tokens(*model.tokenizer, config.max_position));
  }
  model.longest = std::min(config.max_position, engine.kv_tokens);
  // A sample starts as a fork of its prompt, whose last, partly filled block it copies.
  engine.kv_tokens += 2 * KvCache::kBlockTokens;
  engine.threads = ComputeThreads(options.threads);
  model.metrics = std::make_unique<Metrics>();
  MR_ASSIGN_OR_RETURN(model.engine,
                      Engine::Start(std::move(transformer), engine, model.metrics.get()));
  model.engine->SetVersion(0);
  return model;
}

bool SpeaksChat(const Tokenizer& tokenizer) {
  return tokenizer.vocab_size() > kByteVocabulary && tokenizer.CheckChatFormat().ok();
}

absl::StatusOr<RunConfig> LoadRunConfigOf(const std::string& dir) {
  return LoadConfig(JoinPath(dir, "config.toml"));
}

}  // namespace millrace
