// config, tasks, import: the subcommands of a few lines.
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "cli/commands.h"
#include "cli/json_lines.h"
#include "cli/load_bar.h"
#include "cli/machine_check.h"
#include "common/config.h"
#include "common/config_schema.h"
#include "common/status_macros.h"
#include "environments/run_task.h"
#include "model/gguf_import.h"
#include "model/run_model.h"

namespace millrace {
namespace {

void PrintError(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
}

// On this machine, as far as the model is known: its folder may come later.
std::vector<ConfigIssue> MachineIssues(const RunConfig& config) {
  KvShape shape;
  if (const auto model = LoadRunModel(config.model); model.ok()) {
    shape = {model->config.layers, model->config.kv_heads, model->config.head_dim};
  }
  return CheckMachine(config, shape, ThisMachine());
}

}  // namespace

int ConfigCheckCommand(const std::string& file, const std::vector<std::string>& overrides) {
  const auto config = LoadConfig(file, overrides);
  if (!config.ok()) {
    PrintError(config.status());
    return 2;
  }
  const std::vector<ConfigIssue> issues = MachineIssues(*config);
  for (const ConfigIssue& issue : issues) {
    std::fprintf(stderr, "%s: %s: %s\n", file.c_str(), issue.field.c_str(), issue.message.c_str());
  }
  if (!issues.empty()) return 2;
  std::printf("%s: ok\n", file.c_str());
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
  if (!absl::EndsWith(what, ".toml")) {
    MR_ASSIGN_OR_RETURN(RunConfig config, ParseConfig("", "--set", overrides));
    config.task.name = what;
    return MakeRunTask(config);
  }
  MR_ASSIGN_OR_RETURN(const RunConfig config, LoadConfig(what, overrides));
  // A file that only holds a dataset leaves the task's name as it is by default.
  if (!config.data.files.empty() && config.task.name == RunConfig().task.name) {
    TaskOptions options = TaskOptionsOf(config);
    options.name = what;
    return MakeTask(options);
  }
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
