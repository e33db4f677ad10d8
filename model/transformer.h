// The decoder-only model: its weights and the training forward over packed sequences (decoding:
// model/decoder.h, on the same weights).
//
// RMSNorm, rotary embedding (rotate-half, as transformers has it), grouped-query attention,
// optional q/k norm and biases, SwiGLU. fp32. Shapes: T packed tokens, H hidden, V vocabulary. Not
// thread-safe: one thread at a time.
#ifndef MILLRACE_MODEL_TRANSFORMER_H_
#define MILLRACE_MODEL_TRANSFORMER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/model_config.h"
#include "model/weights.h"

namespace millrace {

// A run of consecutive packed tokens that attend causally to each other, and in full to the segment
// `prefix` (an earlier one) when it is >= 0. A group is one prompt segment and G completion
// segments that name it as their prefix: the prompt is computed once.
struct Segment {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t prefix = -1;
};

struct PackedBatch {
  std::vector<int32_t> token_ids;  // (T)
  std::vector<int32_t> positions;  // (T) rotary positions; a completion's go on after its prompt's
  std::vector<Segment> segments;   // in order, covering 0..T
};

struct NamedParameter {
  std::string name;   // HF name
  at::Tensor tensor;  // view of flat_parameters()
  at::Tensor grad;    // view of flat_gradients(); undefined until that was asked for
};

class Transformer {
 public:
  // Random weights: normal(0, 0.02), norms 1, biases 0, from `seed`.
  static absl::StatusOr<std::unique_ptr<Transformer>> Create(const ModelConfig& config,
                                                             uint64_t seed, at::Device device);
  // HF folder; tensors are read one by one and converted to fp32. Missing, surplus or misshapen
  // tensors are named.
  static absl::StatusOr<std::unique_ptr<Transformer>> Load(const std::string& dir,
                                                           at::Device device);
  // The same weights as an independent copy (a frozen reference).
  absl::StatusOr<std::unique_ptr<Transformer>> Clone() const;
  ~Transformer();

  const ModelConfig& config() const;
  at::Device device() const;
  // In the order of ParameterShapes(config). All parameters live in one flat fp32 tensor, and their
  // gradients in another; these are views of the two, so an optimizer step, a publish and a weight
  // swap are each one pass over contiguous memory.
  const std::vector<NamedParameter>& parameters() const;
  at::Tensor flat_parameters() const;  // (P)
  at::Tensor flat_gradients();  // (P); zeros at first; backward of Forward() and SelectedLogprobs()
                                // adds to it. Allocated on first use.
  void ZeroGradients();
  const ModelWeights& weights() const;
  at::Tensor lm_head() const;  // (V, H); the embedding when tied

  // Training forward: hidden states after the final norm, (T, H), with autograd when grad mode is
  // on.
  absl::StatusOr<at::Tensor> Forward(const PackedBatch& batch);

  // config.json, model.safetensors (dtype F32 or BF16), whole or not at all. The tokenizer is saved
  // by its own Save().
  absl::Status Save(const std::string& dir, const std::string& dtype = "F32") const;

 private:
  struct Impl;
  explicit Transformer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Log-probabilities of `targets` and entropies at chosen rows without ever holding (N, V) logits:
// logits are made for `chunk` rows at a time, forward and again backward.
struct LogprobResult {
  at::Tensor
      logprobs;        // (N) of softmax(logits / temperature), differentiable in hidden and lm_head
  at::Tensor entropy;  // (N) detached
};
// hidden (N, H), lm_head (V, H), targets (N) int64.
LogprobResult SelectedLogprobs(const at::Tensor& hidden, const at::Tensor& lm_head,
                               const at::Tensor& targets, double temperature, int64_t chunk);

}  // namespace millrace

#endif  // MILLRACE_MODEL_TRANSFORMER_H_
