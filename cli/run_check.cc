#include "cli/run_check.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "cli/machine_check.h"
#include "common/status_macros.h"
#include "environments/run_task.h"

namespace millrace {

absl::StatusOr<std::unique_ptr<Task>> CheckTask(const RunConfig& config) {
  MR_ASSIGN_OR_RETURN(std::unique_ptr<Task> task, MakeRunTask(config));
  const auto held_out = static_cast<int64_t>(task->Size(Split::kEval));
  const int64_t most =
      std::max(config.eval.problems, config.eval.every > 0 ? config.eval.every_problems : 0);
  if (held_out > 0 && most > held_out) {
    return absl::InvalidArgumentError(
        absl::StrCat("an evaluation of ", most, " problems is configured, but task ", task->name(),
                     " has ", held_out, " held-out ones; lower eval.problems"));
  }
  return task;
}

std::vector<ConfigIssue> CheckModelAndMachine(const RunConfig& config, const ModelConfig* model) {
  std::vector<ConfigIssue> issues =
      CheckMachine(config, model != nullptr ? model->KvElementsPerToken() : 0, ThisMachine());
  const RunConfig::Rollout& rollout = config.rollout;
  // As for models of random weights, whose model.max_position the config itself has.
  if (model != nullptr && model->max_position > 0 &&
      rollout.max_prompt_tokens + rollout.max_new_tokens > model->max_position) {
    issues.push_back(
        {"rollout.max_prompt_tokens", 0,
         absl::StrCat(rollout.max_prompt_tokens, " with rollout.max_new_tokens ",
                      rollout.max_new_tokens, " exceeds the ", model->max_position,
                      " positions of the model; valid: together at most ", model->max_position)});
  }
  return issues;
}

absl::Status CheckPrompts(const RunConfig& config, const RunModel& model, const Task& task) {
  // A group whose prompt is too long is a failed group. When the first problems are all such ones,
  // the rest hardly is any better.
  constexpr uint64_t kLooks = 8;
  absl::Status last;
  for (uint64_t id = 0; id < kLooks; ++id) {
    if (const uint64_t size = task.Size(Split::kTrain); size > 0 && id >= size) break;
    MR_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt,
                        EncodeProblem(*model.tokenizer, task.Make(Split::kTrain, id)));
    const auto length = static_cast<int64_t>(prompt.size());
    if (length <= config.rollout.max_prompt_tokens) return absl::OkStatus();
    last = absl::InvalidArgumentError(absl::StrCat(
        "no problem of task ", task.name(), " can be sampled: the prompt of problem ", id, " has ",
        length, " tokens; rollout.max_prompt_tokens is ", config.rollout.max_prompt_tokens));
  }
  return last;
}

}  // namespace millrace
