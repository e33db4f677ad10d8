#include "cli/task_choice.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "environments/run_task.h"

namespace millrace {
namespace {

bool AnyStartsWith(const std::vector<std::string>& overrides, absl::string_view start) {
  return std::any_of(overrides.begin(), overrides.end(),
                     [start](const std::string& text) { return absl::StartsWith(text, start); });
}

// [task] and [data] as the overrides alone make them.
absl::StatusOr<RunConfig> OverridesAlone(const std::vector<std::string>& overrides) {
  std::vector<std::string> own;
  for (const std::string& text : overrides) {
    if (absl::StartsWith(text, "task.") || absl::StartsWith(text, "data.")) own.push_back(text);
  }
  return ParseConfig("", "--set", own);
}

absl::Status ChooseName(const std::string& name, const std::vector<std::string>& overrides,
                        const RunConfig& set, RunConfig* config) {
  if (AnyStartsWith(overrides, "task.name=") && set.task.name != name) {
    return absl::InvalidArgumentError(absl::StrCat("--set task.name=", set.task.name,
                                                   " contradicts the task that is asked for, ",
                                                   name, "; leave one of them out"));
  }
  if (config->task.name == name) return absl::OkStatus();
  config->task.name = name;
  config->task.digest = set.task.digest;
  // What the config says of its own dataset is not meant for another task.
  const bool of_config =
      name == "dataset" || (name == "mixture" && ReadsData(TaskOptionsOf(*config)));
  if (!of_config) config->data = set.data;
  return absl::OkStatus();
}

absl::Status ChooseFile(const std::string& file, const std::vector<std::string>& overrides,
                        const RunConfig& set, RunConfig* config) {
  MR_ASSIGN_OR_RETURN(const RunConfig named, LoadConfig(file, overrides));
  const RunConfig alone = LoadConfig(file).value_or(named);
  // A dataset leaves the task's name as it is by default.
  const std::string no_name = RunConfig().task.name;
  if (named.task.name == no_name && alone.task.name == no_name &&
      (!alone.data.files.empty() || HoldsOnlyData(alone))) {
    config->task.name = file;
    config->task.digest = set.task.digest;
    config->data = set.data;
  } else {
    config->task = named.task;
    config->data = named.data;
  }
  return absl::OkStatus();
}

}  // namespace

bool HoldsOnlyData(const RunConfig& config) {
  const std::string defaults = PrintConfig(RunConfig());
  RunConfig rest = config;
  rest.data = RunConfig::Data();
  return PrintConfig(rest) == defaults && PrintConfig(config) != defaults;
}

absl::Status ChooseTask(const std::string& what, const std::vector<std::string>& overrides,
                        RunConfig* config) {
  MR_ASSIGN_OR_RETURN(const RunConfig set, OverridesAlone(overrides));
  if (absl::EndsWith(what, ".toml")) {
    MR_RETURN_IF_ERROR(ChooseFile(what, overrides, set, config));
  } else if (!what.empty()) {
    MR_RETURN_IF_ERROR(ChooseName(what, overrides, set, config));
  }
  // These make other problems than those of the run that the digest is of.
  for (const char* field : {"data.", "task.name=", "task.parts="}) {
    if (AnyStartsWith(overrides, field)) config->task.digest = set.task.digest;
  }
  return absl::OkStatus();
}

}  // namespace millrace
