#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/json_lines.h"
#include "cli/progress.h"
#include "cli/progress_format.h"
#include "cli/run_check.h"
#include "cli/run_dir.h"
#include "cli/supervisor.h"
#include "common/clock.h"
#include "common/files.h"
#include "common/net_util.h"
#include "common/process.h"
#include "common/status_macros.h"
#include "model/run_model.h"

namespace millrace {
namespace {

// Everything that can be known to fail before anything is written or started.
absl::Status CheckBeforeStart(RunConfig* run_config, const std::string& program_dir) {
  RunConfig& config = *run_config;
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<Task> task, CheckTask(config));
  for (const std::string& note : task->Notes()) std::printf("%s\n", note.c_str());
  config.task.digest = task->Digest();  // for the other processes
  MR_ASSIGN_OR_RETURN(const RunModel model, LoadRunModel(config.model));
  for (const ConfigIssue& issue : CheckModelAndMachine(config, &model.config)) {
    return absl::InvalidArgumentError(absl::StrCat(issue.field, ": ", issue.message));
  }
  MR_RETURN_IF_ERROR(CheckPrompts(config, model, *task));
  for (const std::string& address : {config.buffer.address, config.weight_sync.address}) {
    if (address.empty()) continue;
    MR_ASSIGN_OR_RETURN(const HostPort where, ParseHostPort(address));
    MR_RETURN_IF_ERROR(CheckCanBind(where.host, where.port));
  }
  for (const char* name : {"millrace-buffer", "millrace-learner", "millrace-rollout"}) {
    const std::string path = JoinPath(program_dir, name);
    if (access(path.c_str(), X_OK) != 0) {
      return absl::NotFoundError(absl::StrCat("program ", path, " is missing; build all programs"));
    }
  }
  return absl::OkStatus();
}

void PrintSummary(const RunDir& run) {
  const auto text = ReadFile(JoinPath(run.path, "summary.json"));
  const auto summary = nlohmann::json::parse(text.value_or(""), nullptr, false);
  if (!summary.is_object()) {
    std::printf("The run is finished; it left no summary in %s.\n", run.path.c_str());
    return;
  }
  std::printf("%s", FormatSummary(summary, run.path).c_str());
}

std::string ResumeHint(const TrainOptions& options, const RunDir& run) {
  return absl::StrCat("millrace ", options.warm_up_only ? "sft " : "train ",
                      ShellWord(JoinPath(run.path, "config.toml")), " --run-dir ",
                      ShellWord(run.path));
}

int Supervise(const TrainOptions& options, const RunDir& run, const std::string& program_dir) {
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  ProgressDisplay display(run.path, {stdout, terminal, run.config.run.steps, run.config.sft.steps});
  Supervisor::Options supervisor_options;
  supervisor_options.config = run.config;
  supervisor_options.run_dir = run.path;
  supervisor_options.program_dir = program_dir;
  supervisor_options.wait_for_stop = WaitForStopSignal;
  supervisor_options.tick = [&display] { display.Update(); };
  supervisor_options.notice = [&display](const std::string& line) { display.PrintLine(line); };
  // The children share the cores: an OpenMP thread that spins at a barrier takes them from another
  // process (a training pass beside two busy servers runs up to three times as long). OpenMP reads
  // this when it is loaded.
  setenv("OMP_WAIT_POLICY", "PASSIVE", /*overwrite=*/0);
  Supervisor supervisor(std::move(supervisor_options));
  const absl::StatusOr<RunEnd> end = supervisor.Run();
  display.Update();
  display.Finish();
  if (!end.ok()) {
    PrintFailure(end.status());
    std::fprintf(stderr, "To go on from the last checkpoint: %s\n",
                 ResumeHint(options, run).c_str());
    return 1;
  }
  if (*end == RunEnd::kStopped) {
    std::printf("Stopped. To go on from the last checkpoint:\n  %s\n",
                ResumeHint(options, run).c_str());
    return 130;
  }
  std::map<std::string, int64_t> peaks = supervisor.peak_memory_bytes();
  peaks["millrace"] = PeakResidentBytes();
  if (const absl::Status status = AddPeakMemory(run.path, peaks); !status.ok())
    PrintFailure(status);
  PrintSummary(run);
  return 0;
}

}  // namespace

int TrainCommand(const TrainOptions& options) {
  std::vector<std::string> overrides = options.overrides;
  if (options.warm_up_only) {
    overrides.push_back("run.steps=0");
    overrides.push_back("learner.warmup_steps=0");
  }
  absl::StatusOr<RunConfig> config = LoadConfig(options.config, overrides);
  if (!config.ok()) {
    PrintFailure(config.status());
    return 2;
  }
  const std::string program_dir = options.program_dir.empty() ? OwnFolder() : options.program_dir;
  if (const absl::Status status = CheckBeforeStart(&*config, program_dir); !status.ok()) {
    return PrintFailure(status);
  }
  InstallStopSignals();
  const absl::StatusOr<RunDir> run =
      PrepareRunDir(*std::move(config), options.run_dir, Clock::Real()->Now());
  if (!run.ok()) {
    return PrintFailure(run.status());
  }
  std::printf("%s run %s in %s (task %s; Ctrl-C stops it and says how to go on)\n",
              run->resumed ? "Resuming" : "Starting", run->config.run.name.c_str(),
              run->path.c_str(), run->config.task.name.c_str());
  std::fflush(stdout);
  return Supervise(options, *run, program_dir);
}

}  // namespace millrace
