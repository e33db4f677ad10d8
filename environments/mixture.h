// Task mixture: problems of several tasks in turn, by weight. Every id belongs to one part, the
// same in every process and in both splits, so a batch has each part's share of groups.
#ifndef MILLRACE_ENVIRONMENTS_MIXTURE_H_
#define MILLRACE_ENVIRONMENTS_MIXTURE_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "environments/task.h"

namespace millrace {

struct MixturePart {
  std::unique_ptr<Task> task;
  double weight = 1;
};

// Problems, verdicts and demonstrations are the parts' own; Problem::source is the part's name.
// Stop strings of any part end a completion. There is a baseline only when every part has one.
// INVALID_ARGUMENT when there is no part, or two are the same task.
absl::StatusOr<std::unique_ptr<Task>> MakeMixtureTask(std::vector<MixturePart> parts);

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_MIXTURE_H_
