// Forward and backward of one micro-batch: hidden states, log-probabilities at the target rows only
// (chunked over the vocabulary head), and the backward from d loss / d logprob, which the caller
// computes on the host. One device-to-host and one host-to-device transfer a micro-batch.
#ifndef MILLRACE_LEARNER_GRADIENT_PASS_H_
#define MILLRACE_LEARNER_GRADIENT_PASS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "learner/packer.h"
#include "model/transformer.h"

namespace millrace {

struct PassOptions {
  double temperature = 1;
  int64_t logit_chunk = 1024;  // rows of (rows, V) logits that exist at once
};

// At the N targets of a micro-batch, on the host.
struct TargetLogprobs {
  std::vector<float> logprobs;  // (N) natural log, of softmax(logits / temperature)
  std::vector<float> entropy;   // (N) nats
};

// Without gradients (a reference model).
absl::StatusOr<TargetLogprobs> ComputeLogprobs(Transformer& model, const MicroBatch& micro,
                                               const PassOptions& options);

// Writes d loss / d logprob (N), zero-filled before the call.
using TokenLoss =
    std::function<absl::Status(const TargetLogprobs& logprobs, absl::Span<float> gradient)>;

// Adds the gradient of one micro-batch to model.flat_gradients(). An error of `loss` leaves the
// gradients as they were. LibTorch exceptions come back as INTERNAL.
absl::Status AccumulateGradient(Transformer& model, const MicroBatch& micro,
                                const PassOptions& options, const TokenLoss& loss);

}  // namespace millrace

#endif  // MILLRACE_LEARNER_GRADIENT_PASS_H_
