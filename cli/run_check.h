// What can be known to fail before a run starts: `millrace train` refuses it, `millrace config
// check` says it. Reads the files of the task, and no weights.
#ifndef MILLRACE_CLI_RUN_CHECK_H_
#define MILLRACE_CLI_RUN_CHECK_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config.h"
#include "environments/task.h"
#include "model/model_config.h"
#include "model/run_model.h"

namespace millrace {

// The config's task, as MakeRunTask makes it. INVALID_ARGUMENT when an evaluation asks for more
// held-out problems than it has.
absl::StatusOr<std::unique_ptr<Task>> CheckTask(const RunConfig& config);

// Fields that the model, where it is known, or this machine (cli/machine_check.h) contradicts.
// `model`: null = not known.
std::vector<ConfigIssue> CheckModelAndMachine(const RunConfig& config, const ModelConfig* model);

// INVALID_ARGUMENT when the first prompts are all longer than rollout.max_prompt_tokens.
absl::Status CheckPrompts(const RunConfig& config, const RunModel& model, const Task& task);

}  // namespace millrace

#endif  // MILLRACE_CLI_RUN_CHECK_H_
