// What a model on disk is, read from its headers: no weights are loaded, no torch is needed.
#ifndef MILLRACE_MODEL_INSPECT_H_
#define MILLRACE_MODEL_INSPECT_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace millrace {

struct ModelSummary {
  std::string path;
  std::string format;        // huggingface, gguf, adapter
  std::string base;          // adapter: folder of the base model, whose numbers stand below
  std::string architecture;  // llama, mistral, qwen2, qwen3, qwen3_moe, or what the file says
  // Empty when this program can load (huggingface, adapter) or import (gguf) it; else the first
  // reason why not, in the words of the loading or the import: a field or an architecture, tensors
  // that are not those of the config, a tokenizer. What could be read of the rest is still filled
  // in.
  std::string unsupported;

  // Tensors as they are stored.
  int64_t tensors = 0;
  int64_t parameters = 0;         // scalars
  int64_t active_parameters = 0;  // used for one token; fewer than all with experts, else all
  int64_t tensor_bytes = 0;
  int64_t files = 0;
  int64_t file_bytes = 0;                 // of the weights' files
  std::map<std::string, int64_t> dtypes;  // F32, BF16, Q4_K, ... -> scalars

  // Zero or empty where the config could not be read.
  int64_t vocab_size = 0;      // rows of the embedding
  int64_t tokenizer_size = 0;  // ids of the tokenizer; 0 = no tokenizer beside the weights
  int64_t context = 0;         // longest sequence that the config names
  int64_t layers = 0, hidden_size = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t experts = 0, experts_per_token = 0;
  int64_t sliding_window = 0;
  std::string rope;  // default, linear, llama3, yarn
  bool tied = false;
  std::vector<std::string> ignored_fields;  // of config.json: not known here, taken to say nothing

  // Bytes of memory here, where weights and K/V are fp32; zero too where the tensors are not those
  // of the config.
  // Weights of a rollout server on its learner's host. On another host a version as it came is
  // there besides, and a second one while it comes; chat, eval and generate hold the weights twice.
  int64_t rollout_bytes = 0;
  int64_t kv_bytes_per_token = 0;  // of one sequence
  int64_t train_bytes = 0;         // weights, gradients, two moments of AdamW; no activations
};

// `path`: a Hugging Face folder, a PEFT adapter's folder, a .gguf file (any part of a split one).
// NOT_FOUND when there is no such thing, INVALID_ARGUMENT when headers are broken or `path` is one
// file of a folder.
absl::StatusOr<ModelSummary> InspectModel(const std::string& path);
// All fields by name, bytes as numbers; for `millrace inspect`.
nlohmann::json ModelSummaryToJson(const ModelSummary& summary);

}  // namespace millrace

#endif  // MILLRACE_MODEL_INSPECT_H_
