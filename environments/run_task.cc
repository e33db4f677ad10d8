#include "environments/run_task.h"

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace millrace {

TaskOptions TaskOptionsOf(const RunConfig& config) {
  TaskOptions options;
  options.name = config.task.name;
  options.seed = static_cast<uint64_t>(config.task.seed);
  options.max_number = config.task.max_number;
  options.partial_credit = config.task.partial_credit;
  options.parts = config.task.parts;
  options.data = config.data;
  return options;
}

absl::StatusOr<std::unique_ptr<Task>> MakeRunTask(const RunConfig& config) {
  MR_ASSIGN_OR_RETURN(std::unique_ptr<Task> task, MakeTask(TaskOptionsOf(config)));
  if (!config.task.digest.empty() && task->Digest() != config.task.digest) {
    return absl::FailedPreconditionError(
        absl::StrCat("the problems of task ", task->name(), " have digest ", task->Digest(),
                     ", but the run was started with ", config.task.digest,
                     " (task.digest): the files differ from those that the run was started with"));
  }
  return task;
}

}  // namespace millrace
