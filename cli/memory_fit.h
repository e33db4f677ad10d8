// Into which machines a model fits. Thread-safe (a plain function).
#ifndef MILLRACE_CLI_MEMORY_FIT_H_
#define MILLRACE_CLI_MEMORY_FIT_H_

#include <nlohmann/json.hpp>

#include "model/inspect.h"

namespace millrace {

// The memory of this machine and of common cards against what the model takes, a row each, of which
// a tenth is left to activations, logits and the system:
//   memory               "this machine", "32 GiB"
//   bytes                of it, all
//   trains               whether a learner fits alone
//   samples              whether a rollout server fits alone, with room for K/V
//   trains_and_samples   whether both fit together, again with room for K/V; on this machine beside
//                        the version that goes from one to the other
//   kv_tokens            tokens of K/V that a rollout server alone has room for
nlohmann::ordered_json MemoryFit(const ModelSummary& summary);

}  // namespace millrace

#endif  // MILLRACE_CLI_MEMORY_FIT_H_
