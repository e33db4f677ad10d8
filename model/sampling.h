// Sampling from logits. Order of the filters as transformers' logits processors have it:
// temperature, top-k, top-p.
#ifndef MILLRACE_MODEL_SAMPLING_H_
#define MILLRACE_MODEL_SAMPLING_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "model/kernels/decode_pool.h"

namespace millrace {

struct SamplingParams {
  float temperature = 1;  // 0 = greedy (logprob reported is that of temperature 1)
  int32_t top_k = 0;      // 0 = off
  float top_p = 1;        // 1 = off
};

// One row's draw. `stream` and `position` name the random number, so that a sample's tokens do not
// depend on what else is in the batch.
struct SampleRow {
  SamplingParams params;
  uint64_t stream = 0;    // e.g. SampleStream(group seed, index)
  uint64_t position = 0;  // count of tokens this sample drew before
};

struct SampledToken {
  int32_t id = 0;
  float logprob = 0;  // natural log, under the distribution drawn from
};

// logits (R, V) fp32 on any device; one sweep over each row, and one device-to-host transfer for
// the whole batch. May overwrite `logits`. Rows are split over `pool` (null = this thread alone).
// Ties at the top-k boundary are all kept. A row whose logits are not finite gives a logprob that
// is not finite.
std::vector<SampledToken> Sample(at::Tensor& logits, absl::Span<const SampleRow> rows,
                                 ComputePool* pool = nullptr);

// Stream of sample `index` of a group with seed `seed`.
uint64_t SampleStream(uint64_t seed, uint32_t index);
// Counter-based uniform in [0, 1): a pure function (splitmix64 finaliser over both words).
double UniformAt(uint64_t stream, uint64_t position);

}  // namespace millrace

#endif  // MILLRACE_MODEL_SAMPLING_H_
