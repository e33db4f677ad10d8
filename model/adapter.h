// PEFT LoRA adapters (Hu et al. 2021; rsLoRA: Kalajdzievski 2023), read so that they can be merged
// into their base model's weights when these are loaded. No torch.
#ifndef MILLRACE_MODEL_ADAPTER_H_
#define MILLRACE_MODEL_ADAPTER_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/model_config.h"
#include "model/safetensors.h"

namespace millrace {

// Whether `dir` is an adapter's folder: adapter_config.json and no config.json.
bool IsAdapterDir(const std::string& dir);
// The folder of the base model that an adapter names, relative to the adapter or absolute; of any
// other folder, itself. NOT_FOUND when it is no folder here (nothing is downloaded).
absl::StatusOr<std::string> BaseModelDir(const std::string& dir);
// Where the tokenizer's files are: the folder itself, or an adapter's base when it has none.
absl::StatusOr<std::string> TokenizerDir(const std::string& dir);

// One adapted weight: W (out, in) becomes W + scaling * b a.
struct LoraPair {
  TensorView a;  // (r, in)
  TensorView b;  // (out, r)
  double scaling = 0;
};

class Adapter {
 public:
  // Everything is checked against `config`, the base model's, before it is served. UNIMPLEMENTED
  // names a kind of adapter or an option that changes the maths (DoRA, trained biases, whole
  // modules,
  // ...); INVALID_ARGUMENT a tensor that has no place or the wrong shape.
  static absl::StatusOr<Adapter> Open(const std::string& dir, const ModelConfig& config);
  // By the name of the base model's parameter.
  const std::map<std::string, LoraPair>& pairs() const { return pairs_; }

 private:
  explicit Adapter(SafetensorsReader reader) : reader_(std::move(reader)) {}
  SafetensorsReader reader_;
  std::map<std::string, LoraPair> pairs_;
};

}  // namespace millrace

#endif  // MILLRACE_MODEL_ADAPTER_H_
