// The task that a run's config names. Every role asks here, so that all of them see the same
// problem for an id.
#ifndef MILLRACE_ENVIRONMENTS_RUN_TASK_H_
#define MILLRACE_ENVIRONMENTS_RUN_TASK_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/config.h"
#include "environments/task.h"

namespace millrace {

TaskOptions TaskOptionsOf(const RunConfig& config);
// MakeTask(TaskOptionsOf(config)). FAILED_PRECONDITION when task.digest is set and the task's
// problems have another: the files of this machine are not those that the run was started with.
absl::StatusOr<std::unique_ptr<Task>> MakeRunTask(const RunConfig& config);

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_RUN_TASK_H_
