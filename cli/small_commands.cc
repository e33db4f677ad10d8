// config, tasks, import: the subcommands of a few lines.
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/json_lines.h"
#include "cli/load_bar.h"
#include "cli/run_check.h"
#include "cli/task_choice.h"
#include "common/config.h"
#include "common/config_schema.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "environments/run_task.h"
#include "model/gguf_import.h"
#include "model/run_model.h"

namespace millrace {
namespace {

void PrintError(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
}

// What `millrace train` would refuse, as far as it can be known here and now.
std::vector<std::string> RunIssues(const std::string& file, const RunConfig& config) {
  std::vector<std::string> issues;
  const auto add = [&issues](const absl::Status& status) {
    if (!status.ok()) issues.emplace_back(status.message());
  };
  const absl::StatusOr<std::unique_ptr<Task>> task = CheckTask(config);
  add(task.status());
  std::optional<RunModel> model;
  const std::string& folder = config.model.path;
  if (!folder.empty() && !FileExists(folder)) {
    // It may come later, or be on another machine.
    std::fprintf(
        stderr, "%s: model.path: %s is not there (yet); what depends on the model is not checked\n",
        file.c_str(), folder.c_str());
  } else {
    absl::StatusOr<RunModel> loaded = LoadRunModel(config.model);
    add(loaded.status());
    if (loaded.ok()) model = *std::move(loaded);
  }
  for (const ConfigIssue& issue : CheckModelAndMachine(config, model ? &model->config : nullptr)) {
    issues.push_back(absl::StrCat(issue.field, ": ", issue.message));
  }
  if (issues.empty() && model) add(CheckPrompts(config, *model, **task));
  return issues;
}

// A file that is no run's config but a dataset by itself (docs/datasets.md).
std::vector<std::string> DatasetIssues(const std::string& file,
                                       const std::vector<std::string>& overrides) {
  RunConfig config;
  absl::Status status = ChooseTask(file, overrides, &config);
  if (status.ok()) status = MakeRunTask(config).status();
  if (status.ok()) return {};
  return {std::string(status.message())};
}

}  // namespace

int ConfigCheckCommand(const std::string& file, const std::vector<std::string>& overrides) {
  const auto config = LoadConfig(file, overrides);
  if (!config.ok()) {
    PrintError(config.status());
    return 2;
  }
  const bool is_dataset = absl::EndsWith(file, ".toml") && HoldsOnlyData(*config);
  const std::vector<std::string> issues =
      is_dataset ? DatasetIssues(file, overrides) : RunIssues(file, *config);
  for (const std::string& issue : issues) {
    std::fprintf(stderr, "%s: %s\n", file.c_str(), issue.c_str());
  }
  if (!issues.empty()) return 2;
  std::printf("%s: ok%s\n", file.c_str(),
              is_dataset ? " as a dataset (a run of it also sets task.name = \"dataset\")" : "");
  return 0;
}

int ConfigPrintCommand(const std::string& file, const std::vector<std::string>& overrides) {
  const auto config = LoadConfig(file, overrides);
  if (!config.ok()) {
    PrintError(config.status());
    return 2;
  }
  std::printf("%s", PrintConfig(*config).c_str());
  return 0;
}

int ConfigDocsCommand() {
  std::printf("%s", ConfigDocsMarkdown().c_str());
  return 0;
}

int TasksCommand() {
  for (const std::string& name : TaskNames()) {
    TaskOptions options;
    options.name = name;
    if (name == "dataset") {
      std::printf("dataset\n  your own JSONL or CSV files: docs/datasets.md\n");
      continue;
    }
    const auto task = MakeTask(options);
    if (!task.ok()) {
      std::printf("%s\n  not available: %s\n", name.c_str(),
                  std::string(task.status().message()).c_str());
      continue;
    }
    const Problem problem = (*task)->Make(Split::kEval, 0);
    std::printf("%s\n  example: %s\n  answer:  %s\n", name.c_str(),
                (problem.messages.empty() ? problem.text : problem.messages.back().content).c_str(),
                problem.reference.c_str());
  }
  return 0;
}

namespace {

absl::StatusOr<std::unique_ptr<Task>> TaskOf(const std::string& what,
                                             const std::vector<std::string>& overrides) {
  RunConfig config;
  if (!absl::EndsWith(what, ".toml")) {
    MR_ASSIGN_OR_RETURN(config, ParseConfig("", "--set", overrides));
  }
  MR_RETURN_IF_ERROR(ChooseTask(what, overrides, &config));
  return MakeRunTask(config);
}

}  // namespace

int DataCommand(const std::string& what, const std::vector<std::string>& overrides) {
  const auto task = TaskOf(what, overrides);
  if (!task.ok()) return PrintFailure(task.status());
  const Problem problem = (*task)->Make(Split::kEval, 0);
  OrderedJson messages = OrderedJson::array();
  for (const ChatMessage& message : problem.messages) {
    messages.push_back({{"role", message.role}, {"content", message.content}});
  }
  OrderedJson example = {{"source", problem.source}};
  if (problem.messages.empty()) {
    example["text"] = problem.text;
  } else {
    example["messages"] = messages;
  }
  example["reference"] = problem.reference;
  example["demonstration"] = problem.demonstration;
  OrderedJson json = {{"task", (*task)->name()}};
  if ((*task)->Size(Split::kEval) > 0) {
    json["train"] = (*task)->Size(Split::kTrain);
    json["held_out"] = (*task)->Size(Split::kEval);
  }
  json["digest"] = (*task)->Digest();
  json["notes"] = (*task)->Notes();
  json["example"] = example;
  const absl::Status printed = PrintJsonLine(json);
  return printed.ok() ? 0 : PrintFailure(printed);
}

int ImportCommand(const ImportOptions& options) {
  GgufImportOptions gguf;
  gguf.dtype = options.dtype;
  LoadBar bar("importing " + options.source);
  gguf.progress = bar.callback();
  const absl::Status status = ImportGguf(options.source, options.dir, gguf);
  if (!status.ok()) {
    PrintError(status);
    return 1;
  }
  std::printf("imported %s into %s\n", options.source.c_str(), options.dir.c_str());
  return 0;
}

}  // namespace millrace
