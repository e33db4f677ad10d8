#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/commands.h"
#include "cli/evaluation_run.h"
#include "cli/json_lines.h"
#include "cli/local_model.h"
#include "cli/progress.h"
#include "cli/task_choice.h"
#include "cli/time_bar.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "environments/run_task.h"
#include "evaluation/interval.h"
#include "evaluation/report.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

struct Settings {
  RunConfig config;  // for the task
  EvaluationSettings run;
};

// From the flags, and from the run's config where they say nothing.
absl::StatusOr<Settings> MakeSettings(const EvalOptions& options) {
  Settings settings;
  const std::string file = JoinPath(options.dir, "config.toml");
  const bool is_run = FileExists(file);
  MR_ASSIGN_OR_RETURN(settings.config, is_run ? LoadConfig(file, options.overrides)
                                              : ParseConfig("", "--set", options.overrides));
  const RunConfig& config = settings.config;
  if (options.task.empty() && !is_run) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.dir, " is no run, so --task must be given; `millrace tasks` lists them"));
  }
  MR_RETURN_IF_ERROR(ChooseTask(options.task, options.overrides, &settings.config));
  if (options.problems < 1 || options.samples < 1) {
    return absl::InvalidArgumentError("--problems and --k must be at least 1");
  }
  if (options.greedy && options.no_greedy) {
    return absl::InvalidArgumentError("--greedy and --no-greedy leave nothing to do");
  }
  settings.run.model = options.dir;
  settings.run.problems = options.problems;
  settings.run.samples = options.greedy ? 0 : options.samples;
  settings.run.greedy = !options.no_greedy;
  settings.run.temperature = options.temperature;
  settings.run.max_new_tokens = options.max_new_tokens > 0 ? options.max_new_tokens
                                : is_run                   ? config.rollout.max_new_tokens
                                                           : 256;
  settings.run.seed = options.seed;
  settings.run.device = options.device;
  settings.run.threads = options.threads;
  return settings;
}

Json SampleToJson(const EvaluatedSample& sample) {
  Json components = Json::object();
  for (const RewardComponent& c : sample.verdict.components) components[c.name] = c.value;
  return {{"problem", sample.problem},
          {"source", sample.source},
          {"mode", sample.greedy ? "greedy" : "sampled"},
          {"sample", sample.sample},
          {"prompt", sample.prompt},
          {"completion", sample.completion},
          {"reference", sample.reference},
          {"correct", sample.verdict.correct},
          {"reward", sample.verdict.reward},
          {"components", std::move(components)},
          {"tokens", sample.tokens},
          {"truncated", sample.truncated}};
}

// Keeps the samples of the first problems for the screen, and writes all to a file when asked.
class SampleKeeper {
 public:
  explicit SampleKeeper(const EvalOptions& options) : options_(options) {}

  absl::Status Open() {
    if (options_.samples_file.empty()) return absl::OkStatus();
    file_.open(options_.samples_file);
    if (file_) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat("cannot write ", options_.samples_file));
  }
  void Add(const EvaluatedSample& sample) {
    if (file_.is_open()) file_ << SampleToJson(sample).dump(-1, ' ', false, kReplace) << "\n";
    if (sample.problem < static_cast<uint64_t>(options_.show)) shown_.push_back(sample);
  }
  absl::Status Close() {
    if (!file_.is_open()) return absl::OkStatus();
    file_.close();
    return file_ ? absl::OkStatus()
                 : absl::DataLossError(absl::StrCat("writing ", options_.samples_file, " failed"));
  }
  void Print(FILE* out) {
    std::sort(shown_.begin(), shown_.end(), [](const auto& a, const auto& b) {
      return std::tuple(a.problem, !a.greedy, a.sample) <
             std::tuple(b.problem, !b.greedy, b.sample);
    });
    for (size_t i = 0; i < shown_.size(); ++i) {
      const EvaluatedSample& s = shown_[i];
      if (i == 0 || shown_[i - 1].problem != s.problem) {
        std::fprintf(out, "\nproblem %llu, expects: %s\n%s\n",
                     static_cast<unsigned long long>(s.problem), s.reference.c_str(),
                     s.prompt.c_str());
      }
      const std::string which = s.greedy ? "greedy" : absl::StrCat("sample ", s.sample);
      std::fprintf(out, "  [%s, %s, reward %.2f%s] %s\n", which.c_str(),
                   s.verdict.correct ? "right" : "wrong", s.verdict.reward,
                   s.truncated ? ", cut off" : "", s.completion.c_str());
    }
  }

 private:
  static constexpr auto kReplace = Json::error_handler_t::replace;
  const EvalOptions& options_;
  std::ofstream file_;
  std::vector<EvaluatedSample> shown_;
};

Json ReportToJson(const Settings& settings, const EvaluationOutcome& outcome) {
  Json json = {{"model", outcome.model_dir},
               {"task", settings.config.task.name},
               {"k", settings.run.samples},
               {"temperature", settings.run.temperature},
               {"max_new_tokens", settings.run.max_new_tokens},
               {"seed", settings.run.seed}};
  json.update(EvaluationToJson(SummariseEvaluation(outcome.problems)));
  json["load_seconds"] = outcome.load_seconds;
  json["seconds"] = outcome.seconds;
  return json;
}

std::string FormatShareReport(const Json& share) {
  return FormatShare(share["value"].get<double>(),
                     {share["low"].get<double>(), share["high"].get<double>()});
}

void PrintReport(const Json& json) {
  const auto row = [](const std::string& name, const std::string& value) {
    std::printf("  %-14s %s\n", name.c_str(), value.c_str());
  };
  std::printf("%s on task %s, %lld held-out problems\n", json["model"].get<std::string>().c_str(),
              json["task"].get<std::string>().c_str(), json["problems"].get<long long>());
  for (const char* mode : {"greedy", "sampled", "baseline"}) {
    if (json.contains(mode)) row(mode, FormatAccuracyReport(json[mode]));
  }
  if (json.contains("pass_at")) {
    for (const Json& pass : json["pass_at"]) {
      row(absl::StrCat("pass@", pass["k"].get<int64_t>()), FormatShareReport(pass));
    }
    if (json.contains("mixed_groups")) row("mixed groups", FormatShareReport(json["mixed_groups"]));
    row("answers",
        absl::StrFormat("%.1f tokens, %.1f %% cut off", json["tokens_mean"].get<double>(),
                        100 * json["truncated_fraction"].get<double>()));
  }
  if (json.contains("by_source")) {
    for (const auto& [source, figures] : json["by_source"].items()) {
      for (const auto& [mode, figure] : figures.items()) {
        row(absl::StrCat(source, ", ", mode), FormatAccuracyReport(figure));
      }
    }
  }
  row("time",
      absl::StrFormat("%s (model loaded in %.1fs)", FormatSeconds(json["seconds"].get<double>()),
                      json["load_seconds"].get<double>()));
  std::printf("advice (%s): %s.\n", json["advice"]["verdict"].get<std::string>().c_str(),
              json["advice"]["text"].get<std::string>().c_str());
}

// Before the work rather than after it.
absl::Status CheckReportPath(const std::string& path) {
  if (path.empty() || path == "-") return absl::OkStatus();
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty() || FileExists(folder)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("--json ", path, ": there is no folder ", folder));
}

absl::Status Evaluate(const EvalOptions& options, const Settings& settings) {
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<Task> task, MakeRunTask(settings.config));
  for (const std::string& note : task->Notes()) std::fprintf(stderr, "%s\n", note.c_str());
  SampleKeeper keeper(options);
  MR_RETURN_IF_ERROR(keeper.Open());
  MR_RETURN_IF_ERROR(CheckReportPath(options.json));
  TimeBar bar;
  EvaluationCallbacks callbacks;
  callbacks.on_sample = [&keeper](const EvaluatedSample& sample) { keeper.Add(sample); };
  callbacks.on_progress = [&bar](int64_t done, int64_t total) { bar.Update(done, total); };
  MR_ASSIGN_OR_RETURN(const EvaluationOutcome outcome,
                      EvaluateModel(*task, settings.run, callbacks));
  MR_RETURN_IF_ERROR(keeper.Close());
  const Json json = ReportToJson(settings, outcome);
  const bool to_stdout = options.json == "-";
  if (to_stdout) {
    MR_RETURN_IF_ERROR(PrintJsonLine(json));
  } else {
    PrintReport(json);
  }
  keeper.Print(to_stdout ? stderr : stdout);
  if (options.json.empty() || to_stdout) return absl::OkStatus();
  return WriteFileAtomically(options.json,
                             json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace

int EvalCommand(const EvalOptions& options) {
  const absl::StatusOr<Settings> settings = MakeSettings(options);
  if (!settings.ok()) {
    PrintFailure(settings.status());
    return 2;
  }
  const absl::Status status = Evaluate(options, *settings);
  return status.ok() ? 0 : PrintFailure(status);
}

}  // namespace millrace
