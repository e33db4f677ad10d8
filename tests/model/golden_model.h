// Golden checkpoints of tests/golden/models as test inputs.
#ifndef MILLRACE_TESTS_MODEL_GOLDEN_MODEL_H_
#define MILLRACE_TESTS_MODEL_GOLDEN_MODEL_H_

#include <ATen/ATen.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/safetensors.h"
#include "model/transformer.h"

namespace millrace::testing {

// How a training forward is run.
enum class Path { kFused, kOperators, kFakeDevice };
std::string PathName(Path path);
// Loads tests/golden/models/<name> for `path`; fails the test on an error.
std::unique_ptr<Transformer> LoadGolden(const std::string& name, Path path);
std::string GoldenModelDir(const std::string& name);

// A small model of random weights with every option that `model_type` has (mistral: a window of 7,
// YaRN; llama: llama3 rope).
ModelConfig SmallConfig(const std::string& model_type);
std::unique_ptr<Transformer> MakeModel(const ModelConfig& config, Path path, uint64_t seed = 1);

struct GoldenCase {
  nlohmann::json json;                     // golden.json
  std::vector<std::vector<int32_t>> rows;  // token ids without padding
  std::vector<at::Tensor> logits;          // (tokens, V) each
  std::vector<at::Tensor> logprobs;        // (tokens) each; first is 0; may be empty
  // The same of the left-padded batch; may be empty.
  std::vector<at::Tensor> left_logits, left_logprobs;
};
// `suffix` of the tensors' names: right.logits<suffix>.
GoldenCase ReadGoldenCase(const std::string& name, const std::string& suffix = "");
// Float tensor `name` of a safetensors file.
at::Tensor ReadTensor(const std::string& path, const std::string& name);

// Rows end to end; with cut > 0 each row longer than that is two segments, the first of which (cut
// tokens) is the second's prefix; a row longer than twice that is three, in a chain.
PackedBatch PackRows(const std::vector<std::vector<int32_t>>& rows, int64_t cut);

// Largest |a - b|, over devices.
double MaxDifference(const at::Tensor& a, const at::Tensor& b);

}  // namespace millrace::testing

#endif  // MILLRACE_TESTS_MODEL_GOLDEN_MODEL_H_
