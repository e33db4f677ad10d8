// Decode forward of a Transformer's weights over a paged KV cache, batched over sequences of any
// lengths; prefill is the same call with more tokens. No autograd. CPU: fused kernels and packed
// projections; other devices, and models with experts: operators. Not thread-safe.
#ifndef MILLRACE_MODEL_DECODER_H_
#define MILLRACE_MODEL_DECODER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/kernels/decode_pool.h"
#include "model/kv_cache.h"
#include "model/parameter_view.h"
#include "model/transformer.h"

namespace millrace {

// New tokens of one sequence; their K/V are appended to `kv`.
struct DecodeSequence {
  KvSequence* kv = nullptr;          // not owned
  absl::Span<const int32_t> tokens;  // 1 when decoding, many when prefilling
  bool want_logits = true;           // false for all but the last chunk of a prompt
};

class Decoder {
 public:
  struct Options {
    bool force_operators = false;  // operator path on the CPU too (tests)
    ComputePool* pool = nullptr;   // not owned; null = a pool of one thread
  };
  Decoder(const Transformer* model, KvCache* cache, Options options);  // both must outlive it
  ~Decoder();

  // Logits (R, V) of the last new token of each sequence with want_logits, in order; valid until
  // the next call, may be overwritten. On the CPU a sequence's logits are the same to the last bit
  // whatever else is in the call and however its prompt was split (but with experts, to rounding).
  // On other devices nothing waits for the device but layers with experts. RESOURCE_EXHAUSTED when
  // the cache is full; then no sequence has changed. INVALID_ARGUMENT names a token outside the
  // vocabulary.
  absl::StatusOr<at::Tensor> Decode(absl::Span<const DecodeSequence> sequences);
  // After parameters were written in place, before the next Decode: packed copies are made anew
  // then (one pass over the weights).
  void WeightsChanged();
  // Whether TakeWeights can take these: where this decoder works with packed copies (fused kernels)
  // and `parameters` can be packed from where they are (fp32).
  bool CanTakeWeights(absl::Span<const ParameterBytes> parameters) const;
  // `parameters`, which have passed CheckParameters() with their bytes, instead of the model's
  // weights: they are packed from where they are, and the model's memory is neither read nor
  // written from now on. So a model made by Transformer::Allocate never takes any. The bytes may go
  // after the return. WeightsChanged() goes back to the model's own.
  absl::Status TakeWeights(absl::Span<const ParameterBytes> parameters);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_MODEL_DECODER_H_
