// The decoder-only model: its weights and the training forward over packed sequences (decoding:
// model/decoder.h, on the same weights; log-probabilities: model/logprobs.h).
//
// RMSNorm, rotary embedding (rotate-half, as transformers has it), grouped-query attention,
// optional q/k norm, biases and sliding windows, SwiGLU, dense or as a mixture of experts. fp32, or
// with products of bf16 factors.
// Shapes: T packed tokens, H hidden, V vocabulary. Not thread-safe: one thread at a time.
#ifndef MILLRACE_MODEL_TRANSFORMER_H_
#define MILLRACE_MODEL_TRANSFORMER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/compute_type.h"
#include "model/logprobs.h"
#include "model/model_config.h"
#include "model/packed_batch.h"
#include "model/weights.h"

namespace millrace {

struct NamedParameter {
  std::string name;   // HF name
  at::Tensor tensor;  // view of flat_parameters()
  at::Tensor grad;    // view of flat_gradients(); undefined until that was asked for
};

struct LoadOptions {
  std::function<void(double fraction)> progress;  // empty = log lines when it takes long
};

class Transformer {
 public:
  // Random weights: normal(0, 0.02), norms 1, biases 0, from `seed`.
  static absl::StatusOr<std::unique_ptr<Transformer>> Create(const ModelConfig& config,
                                                             uint64_t seed, at::Device device);
  // Values undefined until they are written. On the CPU no memory is taken before.
  static absl::StatusOr<std::unique_ptr<Transformer>> Allocate(const ModelConfig& config,
                                                               at::Device device);
  // HF folder, or a PEFT LoRA adapter's, which is merged into its base model. Names, shapes and
  // dtypes of all tensors are checked first, and missing, surplus or misshapen ones named; then
  // tensors are read and converted to fp32, with never more than one beside the weights.
  static absl::StatusOr<std::unique_ptr<Transformer>> Load(const std::string& dir,
                                                           at::Device device,
                                                           const LoadOptions& options = {});
  // The same weights as an independent copy (a frozen reference).
  absl::StatusOr<std::unique_ptr<Transformer>> Clone() const;
  // The same weights in the same memory, for readers.
  absl::StatusOr<std::unique_ptr<Transformer>> Share() const;
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
  // (V, H); the embedding when tied. Once the gradients are allocated, an autograd leaf whose .grad
  // is its part of flat_gradients(); SelectedLogprobs() adds to that.
  at::Tensor lm_head() const;

  // Training forward: hidden states after the final norm, (T, H), with autograd when grad mode is
  // on; its backward may run once. Until then the CPU path holds
  // 4 * T * layers * (2H + 2Q + 2K + 2F) bytes of activations (Q, K, F: model/weights.h), in
  // buffers that later calls use again.
  absl::StatusOr<at::Tensor> Forward(const PackedBatch& batch);
  // What the routers of the layers with experts say of each token, (T, experts) a layer; for
  // RouterBalanceLoss (model/experts.h). A forward pass of its own, with autograd as Forward.
  absl::StatusOr<std::vector<at::Tensor>> RouterLogits(const PackedBatch& batch);
  // Of the matrix products of training and decoding on the CPU; fp32 at first. Plain operators
  // (other devices, experts) are fp32 always.
  void set_compute_type(ComputeType type);
  ComputeType compute_type() const;
  // The path of plain operators on the CPU too, where fused kernels are the default (tests).
  void set_force_operators(bool force);

  // config.json, model.safetensors (dtype F32 or BF16), whole or not at all. The tokenizer is saved
  // by its own Save().
  absl::Status Save(const std::string& dir, const std::string& dtype = "F32") const;

 private:
  struct Impl;
  explicit Transformer(std::unique_ptr<Impl> impl);
  absl::StatusOr<std::unique_ptr<Transformer>> OfWeights(at::Tensor flat) const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_MODEL_TRANSFORMER_H_
