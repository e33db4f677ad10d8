// config, tasks, import: the subcommands of a few lines.
#include <unistd.h>

#include <cstdio>

#include "cli/commands.h"
#include "common/config.h"
#include "common/config_schema.h"
#include "environments/task.h"
#include "model/gguf_import.h"

namespace millrace {
namespace {

void PrintError(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
}

}  // namespace

int ConfigCheckCommand(const std::string& file, const std::vector<std::string>& overrides) {
  const auto config = LoadConfig(file, overrides);
  if (!config.ok()) {
    PrintError(config.status());
    return 2;
  }
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
    const auto task = MakeTask(options);
    if (!task.ok()) continue;
    const Problem problem = (*task)->Make(Split::kEval, 0);
    std::printf("%s\n  example: %s\n  answer:  %s\n", name.c_str(),
                (problem.messages.empty() ? problem.text : problem.messages.back().content).c_str(),
                problem.reference.c_str());
  }
  return 0;
}

int ImportCommand(const ImportOptions& options) {
  GgufImportOptions gguf;
  gguf.dtype = options.dtype;
  const bool terminal = isatty(STDERR_FILENO) != 0;
  if (terminal) {
    gguf.progress = [](double fraction) {
      std::fprintf(stderr, "\rimporting: %3.0f %%", 100 * fraction);
    };
  }
  const absl::Status status = ImportGguf(options.source, options.dir, gguf);
  if (terminal) std::fprintf(stderr, "\r\x1b[K");
  if (!status.ok()) {
    PrintError(status);
    return 1;
  }
  std::printf("imported %s into %s\n", options.source.c_str(), options.dir.c_str());
  return 0;
}

}  // namespace millrace
