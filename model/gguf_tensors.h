// Which tensor of a GGUF file is which parameter of the model.
#ifndef MILLRACE_MODEL_GGUF_TENSORS_H_
#define MILLRACE_MODEL_GGUF_TENSORS_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "model/gguf_reader.h"
#include "model/model_config.h"

namespace millrace {

// By the name that the parameter has in a Hugging Face folder.
using GgufParameters = std::map<std::string, GgufTensor>;

// Every parameter of the architecture, with an lm_head where the file has an output matrix
// (whatever config.tie_word_embeddings says). The matrices of a layer's experts, which are one
// tensor in the file, are slices of it, an entry each. Checked: every tensor of the file has a
// place, in its shape, and a type that can be dequantised; none is missing. The error names it as
// the file does.
absl::StatusOr<GgufParameters> GgufParametersOf(const GgufReader& gguf, const ModelConfig& config);

}  // namespace millrace

#endif  // MILLRACE_MODEL_GGUF_TENSORS_H_
