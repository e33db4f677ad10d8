// Turns LibTorch's exceptions into absl::Status at the public functions of model/, rollout_server/
// and learner/.
#ifndef MILLRACE_MODEL_TORCH_STATUS_H_
#define MILLRACE_MODEL_TORCH_STATUS_H_

#include <exception>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace millrace {

// RESOURCE_EXHAUSTED for memory, INTERNAL otherwise; the message is "<what>: <first line of e>".
absl::Status StatusFromException(absl::string_view what, const std::exception& e);

// Runs `f`, which returns an absl::Status or StatusOr, and turns what it throws into that type.
template <typename F>
auto CatchTorch(absl::string_view what, F&& f) -> std::invoke_result_t<F> {
  try {
    return f();
  } catch (const std::exception& e) {
    return StatusFromException(what, e);
  }
}

}  // namespace millrace

#endif  // MILLRACE_MODEL_TORCH_STATUS_H_
