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

// What of a model decides the size of its KV cache.
struct KvShape {
  int64_t layers = 0, kv_heads = 0, head_dim = 0;
};

// Fields of [rollout] and [learner] that no machine like this can serve, each with what it could: a
// KV cache of one server on the CPU that is larger than the memory, or many more threads than
// cores.
std::vector<ConfigIssue> CheckMachine(const RunConfig& config, const KvShape& shape,
                                      const Machine& machine);

}  // namespace millrace

#endif  // MILLRACE_CLI_MACHINE_CHECK_H_
