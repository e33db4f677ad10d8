// Task sums: "What is 47 + 85?\n" answered with one scratch line and the sum, column by column from
// the right with the carry as the third summand:
//   <think>7+5=12 4+8+1=13</think>
//   #### 132
#ifndef MILLRACE_ENVIRONMENTS_SUMS_H_
#define MILLRACE_ENVIRONMENTS_SUMS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "environments/task.h"

namespace millrace {

// Summands have as many digits as max_number (9 to 999) and are not above it. Reward 1 (component
// "exact") when the completion is one non-empty <think> line, then "#### " and the sum, and nothing
// after it but white space; the scratch line's own sums are not judged.
absl::StatusOr<std::unique_ptr<Task>> MakeSumsTask(uint64_t seed, int64_t max_number);

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_SUMS_H_
