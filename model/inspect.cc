#include "model/inspect.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "model/adapter.h"
#include "model/config_fields.h"
#include "model/gguf_config.h"
#include "model/gguf_dequant.h"
#include "model/gguf_reader.h"
#include "model/model_config.h"
#include "model/safetensors.h"
#include "model/tokenizer.h"

namespace millrace {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t n = 1;
  for (int64_t dim : shape) n *= dim;
  return n;
}

void AddTensor(const std::string& dtype, int64_t elements, int64_t bytes, ModelSummary* summary) {
  ++summary->tensors;
  summary->parameters += elements;
  summary->tensor_bytes += bytes;
  summary->dtypes[dtype] += elements;
}

// What follows from a config that is supported.
void Describe(const ModelConfig& c, ModelSummary* s) {
  s->architecture = c.model_type;
  s->vocab_size = c.vocab_size;
  s->context = c.max_position;
  s->layers = c.layers;
  s->hidden_size = c.hidden_size;
  s->heads = c.heads;
  s->kv_heads = c.kv_heads;
  s->head_dim = c.head_dim;
  s->experts = c.experts;
  s->experts_per_token = c.experts_per_token;
  s->sliding_window = c.sliding_window;
  s->rope = RopeTypeName(c.rope.type);
  s->tied = c.tie_word_embeddings;
  s->ignored_fields = c.ignored_fields;
  int64_t parameters = 0, idle = 0;
  for (const ParameterShape& p : ParameterShapes(c)) {
    parameters += p.Elements();
    if (absl::StrContains(p.name, ".experts.")) idle += p.Elements();
  }
  idle = c.experts == 0 ? 0 : idle / c.experts * (c.experts - c.experts_per_token);
  s->active_parameters = parameters - idle;
  constexpr int64_t kFloat = 4;
  // With experts decoding reads the weights themselves; a packed copy leaves the embedding out,
  // unless it is the head too.
  const int64_t embedding = c.tie_word_embeddings ? 0 : c.vocab_size * c.hidden_size;
  const int64_t packed = c.experts > 0 ? 0 : parameters - embedding;
  s->rollout_bytes = kFloat * (parameters + packed);
  s->kv_bytes_per_token = kFloat * 2 * c.layers * c.kv_heads * c.head_dim;
  s->train_bytes = 4 * kFloat * parameters;
}

// Of a config that is refused: the fields that most models have.
void DescribeLoosely(const std::string& dir, ModelSummary* s) {
  const auto text = ReadFile(JoinPath(dir, "config.json"));
  if (!text.ok()) return;
  const auto json = ParseJsonObject(*text, "config.json");
  if (!json.ok()) return;
  const auto number = [&](const char* name, int64_t* out) {
    const auto it = json->find(name);
    if (it != json->end() && it->is_number_integer()) *out = it->get<int64_t>();
  };
  if (const auto it = json->find("model_type"); it != json->end() && it->is_string()) {
    s->architecture = it->get<std::string>();
  }
  number("vocab_size", &s->vocab_size);
  number("max_position_embeddings", &s->context);
  number("num_hidden_layers", &s->layers);
  number("hidden_size", &s->hidden_size);
  number("num_attention_heads", &s->heads);
  number("num_key_value_heads", &s->kv_heads);
  number("head_dim", &s->head_dim);
}

void DescribeTokenizer(const std::string& dir, ModelSummary* s) {
  const auto tokenizer_dir = TokenizerDir(dir);
  if (!tokenizer_dir.ok()) return;
  const auto tokenizer = Tokenizer::Load(*tokenizer_dir);
  if (tokenizer.ok()) s->tokenizer_size = (*tokenizer)->vocab_size();
}

absl::Status InspectFolder(const std::string& folder, ModelSummary* s) {
  s->format = IsAdapterDir(folder) ? "adapter" : "huggingface";
  MR_ASSIGN_OR_RETURN(const std::string dir, BaseModelDir(folder));
  if (dir != folder) s->base = dir;
  const auto config = LoadModelConfig(folder);
  if (config.ok()) {
    Describe(*config, s);
  } else if (absl::IsNotFound(config.status())) {
    return config.status();
  } else {
    s->unsupported = std::string(config.status().message());
    DescribeLoosely(dir, s);
  }
  MR_ASSIGN_OR_RETURN(const CheckpointReader reader, CheckpointReader::Open(dir));
  for (const SafetensorsReader& file : reader.files()) {
    ++s->files;
    s->file_bytes += static_cast<int64_t>(file.file_bytes().size());
    for (const auto& [name, tensor] : file.tensors()) {
      AddTensor(tensor.dtype, Elements(tensor.shape), static_cast<int64_t>(tensor.bytes.size()), s);
    }
  }
  if (config.ok() && s->format == "adapter") {
    const auto adapter = Adapter::Open(folder, *config);
    if (!adapter.ok()) s->unsupported = std::string(adapter.status().message());
  }
  DescribeTokenizer(folder, s);
  return absl::OkStatus();
}

absl::Status InspectGguf(const std::string& path, ModelSummary* s) {
  s->format = "gguf";
  MR_ASSIGN_OR_RETURN(const GgufReader gguf, GgufReader::Open(path));
  s->files = static_cast<int64_t>(gguf.files().size());
  s->file_bytes = static_cast<int64_t>(gguf.file_bytes());
  for (const auto& [name, tensor] : gguf.tensors()) {
    AddTensor(tensor.type, Elements(tensor.shape), static_cast<int64_t>(tensor.bytes.size()), s);
    if (GgufBlockOf(tensor.type).elements == 0) {
      s->unsupported =
          absl::StrCat("tensor type ", tensor.type, " (of ", SupportedGgufTypes(), ")");
    }
  }
  const auto tokens = gguf.Get<std::vector<std::string>>("tokenizer.ggml.tokens");
  s->tokenizer_size = tokens ? static_cast<int64_t>(tokens->size()) : 0;
  auto config = GgufModelConfig(gguf);
  absl::Status status = config.status();
  if (status.ok()) {
    config->tie_word_embeddings = !gguf.tensors().contains("output.weight");
    status = ValidateModelConfig(*config);
  }
  if (status.ok()) {
    Describe(*config, s);
    return absl::OkStatus();
  }
  s->architecture = gguf.Get<std::string>("general.architecture").value_or("");
  s->unsupported = std::string(status.message());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelSummary> InspectModel(const std::string& path) {
  ModelSummary summary;
  summary.path = path;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    MR_RETURN_IF_ERROR(InspectFolder(path, &summary));
  } else if (fs::exists(path, error)) {
    MR_RETURN_IF_ERROR(InspectGguf(path, &summary));
  } else {
    return absl::NotFoundError(
        absl::StrCat(path,
                     ": no such folder or file; expected a Hugging Face folder, an adapter's, "
                     "or a .gguf file"));
  }
  if (summary.active_parameters == 0) summary.active_parameters = summary.parameters;
  return summary;
}

Json ModelSummaryToJson(const ModelSummary& s) {
  Json json = {{"path", s.path},
               {"format", s.format},
               {"architecture", s.architecture},
               {"supported", s.unsupported.empty()},
               {"tensors", s.tensors},
               {"parameters", s.parameters},
               {"active_parameters", s.active_parameters},
               {"tensor_bytes", s.tensor_bytes},
               {"files", s.files},
               {"file_bytes", s.file_bytes},
               {"dtypes", s.dtypes},
               {"vocab_size", s.vocab_size},
               {"tokenizer_size", s.tokenizer_size},
               {"context", s.context},
               {"layers", s.layers},
               {"hidden_size", s.hidden_size},
               {"heads", s.heads},
               {"kv_heads", s.kv_heads},
               {"head_dim", s.head_dim},
               {"sliding_window", s.sliding_window},
               {"rope", s.rope},
               {"tied", s.tied},
               {"memory",
                {{"rollout_bytes", s.rollout_bytes},
                 {"kv_bytes_per_token", s.kv_bytes_per_token},
                 {"train_bytes", s.train_bytes}}}};
  if (!s.unsupported.empty()) json["unsupported"] = s.unsupported;
  if (!s.ignored_fields.empty()) json["ignored_fields"] = s.ignored_fields;
  if (!s.base.empty()) json["base"] = s.base;
  if (s.experts > 0) {
    json["experts"] = s.experts;
    json["experts_per_token"] = s.experts_per_token;
  }
  return json;
}

}  // namespace millrace
