// Token rows of several sequences laid end to end: what a training forward works on. No torch.
#ifndef MILLRACE_MODEL_PACKED_BATCH_H_
#define MILLRACE_MODEL_PACKED_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

namespace millrace {

// A run of consecutive packed tokens that attend causally to each other, and in full to the segment
// `prefix` (an earlier one) when it is >= 0, and to that one's prefix, and so on. A group is one
// prompt segment and G completion segments that name it as their prefix: the prompt is computed
// once.
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

// INVALID_ARGUMENT names the first token, position or segment that cannot be.
absl::Status ValidatePackedBatch(const PackedBatch& batch, int64_t vocab_size);

}  // namespace millrace

#endif  // MILLRACE_MODEL_PACKED_BATCH_H_
