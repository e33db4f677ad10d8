// The architecture that a GGUF file describes, as the config of a Hugging Face folder.
#ifndef MILLRACE_MODEL_GGUF_CONFIG_H_
#define MILLRACE_MODEL_GGUF_CONFIG_H_

#include "absl/status/statusor.h"
#include "model/gguf_reader.h"
#include "model/model_config.h"

namespace millrace {

// Architectures llama (which llama.cpp calls Mistral too), qwen2, qwen3, qwen3moe. UNIMPLEMENTED
// names another, or a value that changes the maths; INVALID_ARGUMENT a missing or impossible one.
// tie_word_embeddings is left false. Not validated yet, see ValidateModelConfig.
absl::StatusOr<ModelConfig> GgufModelConfig(const GgufReader& gguf);

}  // namespace millrace

#endif  // MILLRACE_MODEL_GGUF_CONFIG_H_
