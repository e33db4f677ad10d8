// The tokenizer that a GGUF file carries, as Hugging Face files.
#ifndef MILLRACE_MODEL_GGUF_TOKENIZER_H_
#define MILLRACE_MODEL_GGUF_TOKENIZER_H_

#include <string>

#include "absl/status/statusor.h"
#include "model/gguf_reader.h"

namespace millrace {

struct GgufTokenizerFiles {
  std::string tokenizer_json;
  std::string tokenizer_config_json;
};
// Byte-level BPE only ("tokenizer.ggml.model" gpt2). UNIMPLEMENTED names another kind or
// pre-tokenizer, INVALID_ARGUMENT what is missing, or more tokens than the file's embedding has
// rows. The result has been read back by ParseTokenizerJson.
absl::StatusOr<GgufTokenizerFiles> TokenizerFromGguf(const GgufReader& gguf,
                                                     const std::string& architecture);

}  // namespace millrace

#endif  // MILLRACE_MODEL_GGUF_TOKENIZER_H_
