// What a config asks of the machine that it will run on. Plain code; the machine is passed in.
#ifndef MILLRACE_CLI_MACHINE_CHECK_H_
#define MILLRACE_CLI_MACHINE_CHECK_H_

#include <cstdint>
#include <vector>

#include "common/config.h"

namespace millrace {

struct Machine {
  int64_t memory_bytes = 0;  // 0 = unknown
  int cores = 1;
};
Machine ThisMachine();

// Fields of [rollout] and [learner] that no machine like this can serve, each with what it could: a
// KV cache of one server on the CPU that is larger than the memory, or many more threads than
// cores. `kv_elements_per_token` as the model's config has it, 0 = no model is known.
std::vector<ConfigIssue> CheckMachine(const RunConfig& config, int64_t kv_elements_per_token,
                                      const Machine& machine);

}  // namespace millrace

#endif  // MILLRACE_CLI_MACHINE_CHECK_H_
