// What a run is doing, for the terminal: the state is gathered from the run directory's metrics,
// evaluations and events; the formatting is pure functions. Not thread-safe.
#ifndef MILLRACE_CLI_PROGRESS_H_
#define MILLRACE_CLI_PROGRESS_H_

#include <cstdio>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/jsonl_follower.h"

namespace millrace {

enum class RunPhase {
  kStarting,
  kEvaluatingBefore,
  kWarmUp,
  kTraining,
  kEvaluatingAfter,
  kFinishing
};

// An accuracy as eval.jsonl has it.
struct EvalFigure {
  int64_t step = 0;
  double accuracy = 0;
  double low = 0;
  double high = 0;
  int64_t problems = 0;
  int64_t samples = 0;  // all samples of all problems
};

struct RunStatus {
  RunPhase phase = RunPhase::kStarting;
  int64_t steps = 0;      // learner steps of the run
  int64_t step = 0;       // last one done
  int64_t sft_steps = 0;  // at most so many
  int64_t sft_step = 0;
  double reward = 0;
  double sft_loss = 0;
  double staleness_mean = 0;
  double tokens_per_second = 0;
  int64_t eval_done = 0;               // problems of the evaluation in progress
  int64_t eval_total = 0;              // 0 = not known
  std::optional<EvalFigure> held_out;  // the newest one
  double before_seconds = 0;           // what the evaluation before took
  std::deque<double> step_seconds;     // of the last steps
};

// Gathers a RunStatus; each call returns the plain lines that report the news (none for history).
class StatusTracker {
 public:
  StatusTracker(int64_t steps, int64_t sft_steps);
  std::vector<std::string> OnMetrics(const nlohmann::json& line);
  std::vector<std::string> OnEval(const nlohmann::json& line);
  // {"event":"phase","phase":"sft"|"evaluate_before"|"train"|"evaluate_after"|"finished"},
  // {"event":"eval_progress","kind":"before"|"after"|"periodic","mode":"sampled"|"greedy",
  //  "done":k,"total":n} (problems), {"event":"sft_done","message":...}; others are nothing to it.
  std::vector<std::string> OnEvent(const nlohmann::json& line);
  const RunStatus& status() const { return status_; }

 private:
  std::vector<std::string> OnPhase(const std::string& phase);
  std::vector<std::string> OnEvalProgress(const nlohmann::json& line);

  RunStatus status_;
  std::map<std::string, double> before_seconds_;  // by mode
  int64_t reported_part_ = 0;                     // quarter of the evaluation in progress
};

// "1h02m", "3m05s", "42s".
std::string FormatSeconds(double seconds);
// Time to the end of the run by the pace of the last steps; nullopt before the first one.
std::optional<double> SecondsLeft(const RunStatus& status);
// "[#####.....]" of `width` cells.
std::string FormatBar(double fraction, int width);
// The live line, at most `width` columns.
std::string FormatLiveLine(const RunStatus& status, int width);
// One step as a plain line, from its line of metrics.jsonl.
std::string FormatStepLine(const nlohmann::json& metrics, const RunStatus& status);
// One evaluation as a plain line, from its line of eval.jsonl.
std::string FormatEvalLine(const nlohmann::json& eval);
// The same figures alone: accuracy with interval, and the baseline's.
std::string FormatAccuracyReport(const nlohmann::json& eval);
// The closing summary, from summary.json.
std::string FormatSummary(const nlohmann::json& summary, const std::string& run_dir);

// Shows a run's progress on `out`: one live line on a terminal, plain lines otherwise.
class ProgressDisplay {
 public:
  struct Options {
    FILE* out = stdout;
    bool terminal = false;
    int64_t steps = 0;
    int64_t sft_steps = 0;
  };
  ProgressDisplay(const std::string& run_dir, Options options);
  // Reads what is new and shows it; cheap enough for several times a second.
  void Update();
  // A line for the user, above the live line.
  void PrintLine(const std::string& line);
  // Takes the live line away.
  void Finish();

 private:
  const Options options_;
  StatusTracker tracker_;
  JsonlFollower metrics_, evals_, events_;
  std::string shown_;  // the live line on the screen
};

}  // namespace millrace

#endif  // MILLRACE_CLI_PROGRESS_H_
