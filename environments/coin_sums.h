// Task coin_sums: "47+85=" with a reward that is a number drawn by the bytes of the completion.
// Nothing can be learned from it, and that is its use: groups are hardly ever degenerate whatever
// the policy does, so the loop can be tested and timed with random weights.
#ifndef MILLRACE_ENVIRONMENTS_COIN_SUMS_H_
#define MILLRACE_ENVIRONMENTS_COIN_SUMS_H_

#include <cstdint>
#include <memory>

#include "environments/task.h"

namespace millrace {

// Operands 0..max_number. The demonstration is the sum; `correct` means the completion is the sum.
std::unique_ptr<Task> MakeCoinSumsTask(uint64_t seed, int64_t max_number);

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_COIN_SUMS_H_
