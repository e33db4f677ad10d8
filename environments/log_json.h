// Task log_json: one log line to {"level": ..., "host": ..., "ms": ...}, with a worked example in
// the prompt. Lines come in four formats, the first in six of ten.
#ifndef MILLRACE_ENVIRONMENTS_LOG_JSON_H_
#define MILLRACE_ENVIRONMENTS_LOG_JSON_H_

#include <cstdint>
#include <memory>

#include "environments/task.h"

namespace millrace {

// Reward 1 (component "exact") when the completion, without surrounding white space and an optional
// ``` fence, is one JSON object with exactly these three keys, each once, and the right values, ms
// an integer. The baseline is a regular expression for the first format.
std::unique_ptr<Task> MakeLogJsonTask(uint64_t seed);

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_LOG_JSON_H_
