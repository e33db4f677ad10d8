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
#include "model/gguf_reader.h"
#include "model/gguf_tensors.h"
#include "model/gguf_tokenizer.h"
#include "model/model_checks.h"
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

// The first reason is kept.
void Refuse(const absl::Status& status, ModelSummary* s) {
  if (!status.ok() && s->unsupported.empty()) s->unsupported = std::string(status.message());
}

// What a config that is supported says.
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
}

// What follows from a config that the tensors agree with.
void DescribeMemory(const ModelConfig& c, ModelSummary* s) {
  int64_t parameters = 0, idle = 0;
  for (const ParameterShape& p : ParameterShapes(c)) {
    parameters += p.Elements();
    if (absl::StrContains(p.name, ".experts.")) idle += p.Elements();
  }
  idle = c.experts == 0 ? 0 : idle / c.experts * (c.experts - c.experts_per_token);
  s->active_parameters = parameters - idle;
  constexpr int64_t kFloat = 4;
  // Packed for decoding; an embedding that is the head too is there as rows besides. With experts
  // decoding reads the weights themselves.
  const bool twice = c.tie_word_embeddings && c.experts == 0;
  s->rollout_bytes = kFloat * (parameters + (twice ? c.vocab_size * c.hidden_size : 0));
  s->kv_bytes_per_token = kFloat * c.KvElementsPerToken();
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

// Weights alone can be loaded, so a folder without a tokenizer is no failure.
void DescribeTokenizer(const std::string& folder, const absl::StatusOr<ModelConfig>& config,
                       ModelSummary* s) {
  const auto dir = TokenizerDir(folder);
  if (!dir.ok() || !FileExists(JoinPath(*dir, "tokenizer.json"))) return;
  const auto tokenizer = Tokenizer::Load(*dir);
  if (!tokenizer.ok()) return Refuse(tokenizer.status(), s);
  s->tokenizer_size = (*tokenizer)->vocab_size();
  if (!config.ok()) return;
  Refuse(CheckTokenizerSize(**tokenizer, *dir, *config, s->base.empty() ? folder : s->base), s);
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
    Refuse(config.status(), s);
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
  if (config.ok()) {
    const absl::Status tensors = CheckTensors(*config, reader, dir);
    Refuse(tensors, s);
    if (tensors.ok()) DescribeMemory(*config, s);
    if (s->format == "adapter") Refuse(Adapter::Open(folder, *config).status(), s);
  }
  DescribeTokenizer(folder, config, s);
  return absl::OkStatus();
}

absl::Status InspectGguf(const std::string& path, ModelSummary* s) {
  s->format = "gguf";
  MR_ASSIGN_OR_RETURN(const GgufReader gguf, GgufReader::Open(path));
  s->files = static_cast<int64_t>(gguf.files().size());
  s->file_bytes = static_cast<int64_t>(gguf.file_bytes());
  for (const auto& [name, tensor] : gguf.tensors()) {
    AddTensor(tensor.type, Elements(tensor.shape), static_cast<int64_t>(tensor.bytes.size()), s);
  }
  const auto tokens = gguf.Get<std::vector<std::string>>("tokenizer.ggml.tokens");
  s->tokenizer_size = tokens ? static_cast<int64_t>(tokens->size()) : 0;
  const std::string architecture = gguf.Get<std::string>("general.architecture").value_or("");
  s->architecture = architecture;
  // As the import asks (model/gguf_import.cc), and in its order.
  auto config = GgufModelConfig(gguf);
  absl::Status status = config.status();
  if (status.ok()) {
    config->tie_word_embeddings = !gguf.tensors().contains("output.weight");
    status = ValidateModelConfig(*config);
  }
  Refuse(status, s);
  if (!status.ok()) return absl::OkStatus();
  Describe(*config, s);
  const absl::Status tensors = GgufParametersOf(gguf, *config).status();
  Refuse(tensors, s);
  if (tensors.ok()) DescribeMemory(*config, s);
  Refuse(TokenizerFromGguf(gguf, architecture).status(), s);
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
    if (absl::EndsWith(path, ".safetensors") || absl::EndsWith(path, ".json")) {
      const std::string folder = fs::path(path).parent_path().string();
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is one file of a model; give its folder (",
                       folder.empty() ? "." : folder, ") or a .gguf file"));
    }
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
