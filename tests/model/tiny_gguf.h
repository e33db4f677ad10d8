// GGUF files of tiny models, for the tests of the import.
#ifndef MILLRACE_TESTS_MODEL_TINY_GGUF_H_
#define MILLRACE_TESTS_MODEL_TINY_GGUF_H_

#include <string>

#include "model/byte_level.h"
#include "nlohmann/json.hpp"
#include "tests/model/gguf_builder.h"

namespace millrace::testing {

constexpr int kHidden = 8, kHeads = 2, kVocab = 259, kFeedForward = 16;
constexpr int kExperts = 4, kExpertFeedForward = 6;

inline std::string Floats(int count, float first) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += Raw(first + static_cast<float>(i));
  return bytes;
}

struct TinyOptions {
  std::string architecture = "llama";
  bool with_output = false;
  float freq_base = 1e5f;
};

// A model of one layer with the byte vocabulary and no merges.
inline GgufBuilder Tiny(const TinyOptions& o) {
  const std::string& arch = o.architecture;
  GgufBuilder b;
  b.String("general.architecture", arch);
  b.Integer(arch + ".embedding_length", kHidden);
  b.Integer(arch + ".feed_forward_length", kFeedForward);
  b.Integer(arch + ".block_count", 1);
  b.Integer(arch + ".attention.head_count", kHeads);
  b.Integer(arch + ".attention.head_count_kv", 1);
  b.Integer(arch + ".context_length", 64);
  b.Float(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
  b.Float(arch + ".rope.freq_base", o.freq_base);
  b.String("tokenizer.ggml.model", "gpt2");
  b.String("tokenizer.ggml.pre", "smollm");
  std::vector<std::string> tokens = {"<|pad|>", "<|im_start|>", "<|im_end|>"};
  std::vector<int32_t> types = {3, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(ByteCharacter(static_cast<uint8_t>(byte)));
    types.push_back(1);
  }
  b.Strings("tokenizer.ggml.tokens", tokens);
  b.Integers("tokenizer.ggml.token_type", types);
  b.Strings("tokenizer.ggml.merges", {});
  b.Integer("tokenizer.ggml.eos_token_id", 2);
  b.Integer("tokenizer.ggml.bos_token_id", 1);
  b.Integer("tokenizer.ggml.padding_token_id", 0);
  const auto add = [&](const std::string& name, std::vector<uint64_t> dims, float first = 0) {
    uint64_t count = 1;
    for (uint64_t dim : dims) count *= dim;
    b.Tensor(name, dims, 0, Floats(static_cast<int>(count), first));
  };
  const std::string layer = "blk.0.";
  add("token_embd.weight", {kHidden, kVocab});
  add("output_norm.weight", {kHidden}, 1);
  add(layer + "attn_norm.weight", {kHidden}, 2);
  add(layer + "ffn_norm.weight", {kHidden}, 3);
  add(layer + "attn_q.weight", {kHidden, kHidden});
  add(layer + "attn_k.weight", {kHidden, kHidden / kHeads});
  add(layer + "attn_v.weight", {kHidden, kHidden / kHeads});
  add(layer + "attn_output.weight", {kHidden, kHidden});
  if (arch == "qwen3moe") {
    b.Integer(arch + ".expert_count", kExperts);
    b.Integer(arch + ".expert_used_count", 2);
    b.Integer(arch + ".expert_feed_forward_length", kExpertFeedForward);
    add(layer + "ffn_gate_inp.weight", {kHidden, kExperts}, 600);
    add(layer + "ffn_gate_exps.weight", {kHidden, kExpertFeedForward, kExperts}, 1000);
    add(layer + "ffn_up_exps.weight", {kHidden, kExpertFeedForward, kExperts}, 2000);
    add(layer + "ffn_down_exps.weight", {kExpertFeedForward, kHidden, kExperts}, 3000);
  } else {
    add(layer + "ffn_gate.weight", {kHidden, kFeedForward});
    add(layer + "ffn_up.weight", {kHidden, kFeedForward});
    add(layer + "ffn_down.weight", {kFeedForward, kHidden});
  }
  if (arch == "qwen2") {
    add(layer + "attn_q.bias", {kHidden}, 100);
    add(layer + "attn_k.bias", {kHidden / kHeads}, 200);
    add(layer + "attn_v.bias", {kHidden / kHeads}, 300);
  }
  if (arch == "qwen3" || arch == "qwen3moe") {
    add(layer + "attn_q_norm.weight", {kHidden / kHeads}, 400);
    add(layer + "attn_k_norm.weight", {kHidden / kHeads}, 500);
  }
  if (o.with_output) add("output.weight", {kHidden, kVocab}, 9000);
  return b;
}

inline GgufBuilder TinyLlama(bool with_output = false) {
  return Tiny({.with_output = with_output});
}

}  // namespace millrace::testing

#endif  // MILLRACE_TESTS_MODEL_TINY_GGUF_H_
