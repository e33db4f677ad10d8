#include "model/gguf_tensors.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "model/gguf_dequant.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

using Json = nlohmann::json;
using Names = std::map<std::string, std::string>;

// "blk.3.attn_q.weight" in its parts; the layer is empty when it is no tensor of a layer.
struct LayerTensor {
  std::string layer, part, ending;
};

LayerTensor Split(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  if (parts.size() != 4 || parts[0] != "blk") return {};
  return {parts[1], parts[2], parts[3]};
}

// Hugging Face name of a tensor that is one parameter; empty when it has none.
std::string HuggingFaceName(const std::string& name) {
  static const auto* const kWhole = new Names{{"token_embd.weight", "model.embed_tokens.weight"},
                                              {"output_norm.weight", "model.norm.weight"},
                                              {"output.weight", "lm_head.weight"}};
  static const auto* const kParts =
      new Names{{"attn_norm", "input_layernorm"},    {"ffn_norm", "post_attention_layernorm"},
                {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
                {"attn_v", "self_attn.v_proj"},      {"attn_output", "self_attn.o_proj"},
                {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
                {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
                {"ffn_down", "mlp.down_proj"},       {"ffn_gate_inp", "mlp.gate"}};
  if (const auto it = kWhole->find(name); it != kWhole->end()) return it->second;
  const LayerTensor tensor = Split(name);
  const auto it = kParts->find(tensor.part);
  if (it == kParts->end()) return "";
  return absl::StrCat("model.layers.", tensor.layer, ".", it->second, ".", tensor.ending);
}

// What all experts of a layer have one of: "gate_proj" for "ffn_gate_exps"; else empty.
std::string ExpertsMatrix(const LayerTensor& tensor) {
  static const auto* const kMatrices = new Names{
      {"ffn_gate_exps", "gate_proj"}, {"ffn_up_exps", "up_proj"}, {"ffn_down_exps", "down_proj"}};
  const auto it = kMatrices->find(tensor.part);
  return it == kMatrices->end() || tensor.ending != "weight" ? "" : it->second;
}

// Tensors that say something of the architecture.
bool NoParameter(const std::string& name) { return name == "rope_freqs.weight"; }

// Takes parameters out of those that are wanted, by name and shape.
class Collector {
 public:
  explicit Collector(const ModelConfig& config) : config_(config) {
    for (ParameterShape& p : ParameterShapes(config)) wanted_[p.name] = std::move(p.shape);
  }

  absl::Status Add(const std::string& name, const GgufTensor& tensor) {
    if (GgufBlockOf(tensor.type).elements == 0) {
      return absl::UnimplementedError(absl::StrCat("tensor \"", name, "\" has type ", tensor.type,
                                                   ", which is not supported (of ",
                                                   SupportedGgufTypes(), ")"));
    }
    const LayerTensor parts = Split(name);
    const std::string matrix = ExpertsMatrix(parts);
    if (matrix.empty()) return Take(name, HuggingFaceName(name), tensor);
    const int64_t experts = config_.experts;
    if (tensor.shape.size() != 3 || tensor.shape[0] != experts) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\" has shape ",
                                                     Json(tensor.shape).dump(), ", but there are ",
                                                     experts, " experts"));
    }
    // Experts come first in the shape, so each one's rows, which are whole blocks, stand together.
    const size_t size = tensor.bytes.size() / experts;
    for (int64_t e = 0; e < experts; ++e) {
      const GgufTensor one = {
          tensor.type, {tensor.shape[1], tensor.shape[2]}, tensor.bytes.subspan(e * size, size)};
      MR_RETURN_IF_ERROR(Take(
          name,
          absl::StrCat("model.layers.", parts.layer, ".mlp.experts.", e, ".", matrix, ".weight"),
          one));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<GgufParameters> Finish() {
    if (wanted_.empty()) return std::move(found_);
    return absl::InvalidArgumentError(absl::StrCat("no tensor for \"", wanted_.begin()->first,
                                                   "\" (", wanted_.size(), " are missing)"));
  }

 private:
  absl::Status Take(const std::string& name, const std::string& parameter,
                    const GgufTensor& tensor) {
    const auto it = wanted_.find(parameter);
    if (it == wanted_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", name, "\" has no place in architecture ", config_.model_type));
    }
    if (it->second != tensor.shape) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\" has shape ",
                                                     Json(tensor.shape).dump(), ", expected ",
                                                     Json(it->second).dump()));
    }
    wanted_.erase(it);
    found_[parameter] = tensor;
    return absl::OkStatus();
  }

  const ModelConfig& config_;
  std::map<std::string, std::vector<int64_t>> wanted_;
  GgufParameters found_;
};

}  // namespace

absl::StatusOr<GgufParameters> GgufParametersOf(const GgufReader& gguf, const ModelConfig& config) {
  ModelConfig with_head = config;
  with_head.tie_word_embeddings = !gguf.tensors().contains("output.weight");
  Collector collector(with_head);
  for (const auto& [name, tensor] : gguf.tensors()) {
    if (!NoParameter(name)) MR_RETURN_IF_ERROR(collector.Add(name, tensor));
  }
  return collector.Finish();
}

}  // namespace millrace
