// The two model shapes that the benches measure: the sizes of the peers' figures.
#ifndef MILLRACE_BENCH_SHAPES_H_
#define MILLRACE_BENCH_SHAPES_H_

#include <string>

#include "model/model_config.h"

namespace millrace {

// "tiny": Qwen3 of 3.28 M parameters; anything else: Llama of SmolLM2-135M's sizes.
inline ModelConfig BenchShape(const std::string& name) {
  const bool tiny = name == "tiny";
  ModelConfig c;
  c.model_type = tiny ? "qwen3" : "llama";
  c.vocab_size = tiny ? 512 : 49152;
  c.hidden_size = tiny ? 256 : 576;
  c.intermediate_size = tiny ? 768 : 1536;
  c.layers = tiny ? 4 : 30;
  c.heads = tiny ? 8 : 9;
  c.kv_heads = tiny ? 4 : 3;
  c.head_dim = tiny ? 32 : 64;
  c.max_position = 8192;
  c.tie_word_embeddings = true;
  c.qk_norm = tiny;
  return c;
}

}  // namespace millrace

#endif  // MILLRACE_BENCH_SHAPES_H_
