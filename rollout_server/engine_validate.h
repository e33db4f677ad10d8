// Whether an engine could ever serve a request.
#ifndef MILLRACE_ROLLOUT_SERVER_ENGINE_VALIDATE_H_
#define MILLRACE_ROLLOUT_SERVER_ENGINE_VALIDATE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "rollout_server/engine.h"

namespace millrace {

// INVALID_ARGUMENT names the field and its value; RESOURCE_EXHAUSTED the KV blocks (of
// `total_blocks`) that one sample would need.
absl::Status ValidateEngineRequest(const EngineRequest& request, const ModelConfig& config,
                                   int64_t total_blocks);

}  // namespace millrace

#endif  // MILLRACE_ROLLOUT_SERVER_ENGINE_VALIDATE_H_
