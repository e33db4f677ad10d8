// Whether the parts of a model fit each other: config, tensors, tokenizer. All who load or describe
// a model ask here. Reads headers only; no torch.
#ifndef MILLRACE_MODEL_MODEL_CHECKS_H_
#define MILLRACE_MODEL_MODEL_CHECKS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "model/model_config.h"
#include "model/safetensors.h"
#include "model/tokenizer.h"

namespace millrace {

// Names, shapes and dtypes of all tensors of `checkpoint`, the files of folder `dir`, against those
// of a model of `config`. INVALID_ARGUMENT names missing, surplus and misshapen tensors,
// UNIMPLEMENTED one whose dtype is not read.
absl::Status CheckTensors(const ModelConfig& config, const CheckpointReader& checkpoint,
                          const std::string& dir);

// INVALID_ARGUMENT when a tokenizer has more ids (highest + 1) than the embedding has rows. The
// message calls the one `tokenizer`, the other the embedding of `model`.
absl::Status CheckTokenizerSize(int64_t ids, const std::string& tokenizer, int64_t rows,
                                const std::string& model);
// The same of a tokenizer loaded from `tokenizer_dir` for the model in `model_dir`.
absl::Status CheckTokenizerSize(const Tokenizer& tokenizer, const std::string& tokenizer_dir,
                                const ModelConfig& config, const std::string& model_dir);

}  // namespace millrace

#endif  // MILLRACE_MODEL_MODEL_CHECKS_H_
