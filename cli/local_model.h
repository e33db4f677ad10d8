// A model of a folder with an engine in this process, for commands. Not thread-safe.
#ifndef MILLRACE_CLI_LOCAL_MODEL_H_
#define MILLRACE_CLI_LOCAL_MODEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config.h"
#include "common/metrics.h"
#include "model/tokenizer.h"
#include "rollout_server/engine.h"

namespace millrace {

struct LocalModelOptions {
  std::string device = "cpu";
  int threads = 0;        // compute threads; 0 = all cores
  int64_t max_batch = 1;  // samples decoded together
  // Capacity of the KV cache; 0 = one sequence as long as the model's context, on the CPU as far as
  // a quarter of the machine's memory goes (but 4096 tokens), elsewhere at most 4096 tokens.
  int64_t kv_tokens = 0;
  // Asked once the tokenizer and the model's context are known: the cache has at least so many
  // tokens. Empty = kv_tokens is all.
  std::function<int64_t(const Tokenizer& tokenizer, int64_t context)> least_kv_tokens;
  // Hears how far the loading is; empty = a bar on stderr when it takes long (cli/load_bar.h).
  std::function<void(double fraction)> progress;
};

struct LocalModel {
  std::string dir;    // the Hugging Face folder
  bool chat = false;  // false: a byte tokenizer, the text is the prompt as it is
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Metrics> metrics;
  std::unique_ptr<Engine> engine;  // last: it uses the others
  std::vector<int32_t> stop_ids;
  int64_t longest = 0;  // tokens of prompt and answer together
};

// The tokenizer of a model folder, for commands that compute with the model too. INVALID_ARGUMENT
// when it has more ids than the model's embedding has rows. Reads no weights.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadModelTokenizer(const std::string& model_dir);

// `run_or_model_dir`: a run (its newest checkpoint) or a Hugging Face folder.
absl::StatusOr<LocalModel> LoadLocalModel(const std::string& run_or_model_dir,
                                          const LocalModelOptions& options);

// Whether prompts go through a chat template. Models of random weights with the byte tokenizer have
// one that they can't use.
bool SpeaksChat(const Tokenizer& tokenizer);

// The config of the run in `dir`; NOT_FOUND when it is a model folder.
absl::StatusOr<RunConfig> LoadRunConfigOf(const std::string& dir);

}  // namespace millrace

#endif  // MILLRACE_CLI_LOCAL_MODEL_H_
