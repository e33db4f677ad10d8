#include "model/decoder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/decoder_operators.h"
#include "model/kernels/decode_step.h"
#include "model/torch_status.h"

namespace millrace {

struct Decoder::Impl {
  const Transformer* model;
  KvCache* cache;
  Options options;
  std::unique_ptr<ComputePool> own_pool;
  ComputePool* pool = nullptr;
  std::unique_ptr<decode::FusedStep> fused;  // null on the operator path
  bool stale = true;                         // packed copies are older than the weights
  std::vector<decode::StepSequence> step;

  absl::Status Check(absl::Span<const DecodeSequence> sequences) const;
  bool operators() const {
    return options.force_operators || !model->device().is_cpu() || model->config().experts > 0;
  }
  decode::FusedStep& Fused();
  absl::StatusOr<at::Tensor> Run(absl::Span<const DecodeSequence> sequences);
};

absl::Status Decoder::Impl::Check(absl::Span<const DecodeSequence> sequences) const {
  int64_t needed = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const DecodeSequence& sequence = sequences[i];
    if (sequence.tokens.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("decode: sequence ", i, " has no new token"));
    }
    for (int32_t token : sequence.tokens) {
      if (token < 0 || token >= model->config().vocab_size) {
        return absl::InvalidArgumentError(absl::StrCat("decode: token ", token, " of sequence ", i,
                                                       " is outside the vocabulary of ",
                                                       model->config().vocab_size));
      }
    }
    needed += cache->BlocksNeeded(*sequence.kv, static_cast<int64_t>(sequence.tokens.size()));
  }
  if (needed > cache->free_blocks()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("decode: ", sequences.size(), " sequences need ", needed, " more KV blocks, ",
                     cache->free_blocks(), " of ", cache->total_blocks(), " are free"));
  }
  return absl::OkStatus();
}

decode::FusedStep& Decoder::Impl::Fused() {
  if (fused == nullptr) {
    fused = std::make_unique<decode::FusedStep>(model->config(), model->weights(),
                                                model->compute_type(), cache, pool);
  }
  return *fused;
}

absl::StatusOr<at::Tensor> Decoder::Impl::Run(absl::Span<const DecodeSequence> sequences) {
  const at::NoGradGuard no_grad;
  step.clear();
  for (const DecodeSequence& sequence : sequences) {
    MR_RETURN_IF_ERROR(cache->Extend(sequence.kv, static_cast<int64_t>(sequence.tokens.size())));
    step.push_back({sequence.kv, sequence.tokens, sequence.want_logits});
  }
  const ModelConfig& config = model->config();
  if (operators()) {
    if (step.empty()) return at::empty({0, config.vocab_size}, model->lm_head().options());
    return DecodeWithOperators(config, model->weights(), cache, step);
  }
  if (stale) Fused().Pack();
  stale = false;
  int64_t rows = 0;
  float* logits = fused->Run(step, &rows);
  return at::from_blob(logits, {rows, config.vocab_size}, at::kFloat);
}

Decoder::Decoder(const Transformer* model, KvCache* cache, Options options)
    : impl_(std::make_unique<Impl>()) {
  impl_->model = model;
  impl_->cache = cache;
  impl_->options = options;
  if (options.pool == nullptr) impl_->own_pool = std::make_unique<ComputePool>(1);
  impl_->pool = options.pool != nullptr ? options.pool : impl_->own_pool.get();
}

Decoder::~Decoder() = default;

absl::StatusOr<at::Tensor> Decoder::Decode(absl::Span<const DecodeSequence> sequences) {
  MR_RETURN_IF_ERROR(impl_->Check(sequences));
  return CatchTorch("decode", [&] { return impl_->Run(sequences); });
}

void Decoder::WeightsChanged() { impl_->stale = true; }

bool Decoder::CanTakeWeights(absl::Span<const ParameterBytes> parameters) const {
  return !impl_->operators() && ParameterPieces::Readable(parameters);
}

absl::Status Decoder::TakeWeights(absl::Span<const ParameterBytes> parameters) {
  return CatchTorch("taking weights", [&] {
    impl_->Fused().Pack(ParameterPieces(impl_->model->config(), parameters));
    impl_->stale = false;
    return absl::OkStatus();
  });
}

}  // namespace millrace
