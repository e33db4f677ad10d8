// Which task a command line names. Plain functions; they read the TOML file that is named.
#ifndef MILLRACE_CLI_TASK_CHOICE_H_
#define MILLRACE_CLI_TASK_CHOICE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/config.h"

namespace millrace {

// Makes `what` the task of `config`, which has `overrides` in it already: the name of a task, a
// dataset's TOML, or the config of a run, whose [task] and [data] are taken then; empty = the task
// that it has. Of another task's [data], what `overrides` do not say is not kept; task.digest is
// forgotten where the problems are others. INVALID_ARGUMENT when `what` and --set task.name differ.
absl::Status ChooseTask(const std::string& what, const std::vector<std::string>& overrides,
                        RunConfig* config);

// Whether `config` says something of [data] and of nothing else: a dataset rather than a run.
bool HoldsOnlyData(const RunConfig& config);

}  // namespace millrace

#endif  // MILLRACE_CLI_TASK_CHOICE_H_
