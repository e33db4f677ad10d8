// Early-return helpers for absl::Status and absl::StatusOr (the absl of Debian 12 has none).
#ifndef MILLRACE_COMMON_STATUS_MACROS_H_
#define MILLRACE_COMMON_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define MR_STATUS_CONCAT_INNER(a, b) a##b
#define MR_STATUS_CONCAT(a, b) MR_STATUS_CONCAT_INNER(a, b)

// Returns from the function when `expr` (an absl::Status) is not OK.
#define MR_RETURN_IF_ERROR(expr)                                            \
  do {                                                                      \
    if (absl::Status mr_status = (expr); !mr_status.ok()) return mr_status; \
  } while (false)

// MR_ASSIGN_OR_RETURN(auto x, F()) assigns the value of a StatusOr or returns its error.
#define MR_ASSIGN_OR_RETURN(lhs, expr) \
  MR_ASSIGN_OR_RETURN_IMPL(MR_STATUS_CONCAT(mr_statusor_, __LINE__), lhs, expr)
// NOLINTBEGIN(bugprone-macro-parentheses): lhs may be a declaration, tmp is a name
#define MR_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  lhs = *std::move(tmp)
// NOLINTEND(bugprone-macro-parentheses)

#endif  // MILLRACE_COMMON_STATUS_MACROS_H_
