// Packs trajectories into micro-batches of at most `token_budget` tokens. Plain code.
//
// Trajectories of one group with the same prompt share one prompt segment a micro-batch; the rest
// of each becomes a segment that names it as its prefix. The hidden state at a token predicts the
// next token, so the logits of a completion's first token come from the prompt's last row, and the
// last token of a trajectory is a target only: it is not part of the forward. Tokens with loss mask
// 0 inside a completion (tool results) are context and no targets.
#ifndef MILLRACE_LEARNER_PACKER_H_
#define MILLRACE_LEARNER_PACKER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/transformer.h"

namespace millrace {

struct PackInput {
  absl::Span<const int32_t> token_ids;  // (T)
  absl::Span<const uint8_t> loss_mask;  // (T)
  uint64_t group = 0;
};

struct MicroBatch {
  PackedBatch batch;
  // One entry a target, N in all: the packed row whose hidden state predicts it, its id, and where
  // it is: token_ids[token[i]] of input trajectory[i].
  std::vector<int64_t> rows;
  std::vector<int64_t> targets;
  std::vector<int32_t> trajectory;
  std::vector<int32_t> token;
};

// Number of targets of an input: masked-in tokens but one at position 0, which nothing predicts.
int64_t CountTargets(const PackInput& input);

// In the order of `inputs`; a group is split where the budget ends (its prompt is then packed
// again); a trajectory larger than the budget goes alone. Inputs without a target are left out.
// INVALID_ARGUMENT names an input whose mask has another length than its tokens.
absl::StatusOr<std::vector<MicroBatch>> PackTrajectories(absl::Span<const PackInput> inputs,
                                                         int64_t token_budget);

}  // namespace millrace

#endif  // MILLRACE_LEARNER_PACKER_H_
