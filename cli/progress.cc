#include "cli/progress.h"

#include <sys/ioctl.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "cli/progress_format.h"
#include "common/files.h"

namespace millrace {
namespace {

constexpr size_t kPaceSteps = 8;  // steps whose mean length predicts the rest

int TerminalWidth(FILE* out) {
  winsize size{};
  if (ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 100;
}

}  // namespace

StatusTracker::StatusTracker(int64_t steps, int64_t sft_steps) {
  status_.steps = steps;
  status_.sft_steps = sft_steps;
}

std::vector<std::string> StatusTracker::OnMetrics(const nlohmann::json& line) {
  const bool sft = JsonText(line, "phase") == "sft";
  const int64_t step = JsonInteger(line, "step");
  status_.tokens_per_second = JsonNumber(line, "tokens_per_second");
  if (sft) {
    status_.phase = RunPhase::kWarmUp;
    status_.sft_step = step;
    status_.sft_loss = JsonNumber(line, "loss");
    // Hundreds of small steps: a line for every tenth.
    if (step % 10 != 0) return {};
    return {FormatStepLine(line, status_)};
  }
  status_.phase = RunPhase::kTraining;
  status_.step = step;
  status_.reward = JsonNumber(line, "reward_mean");
  status_.staleness_mean = JsonNumber(line, "staleness_mean");
  const auto seconds = line.find("seconds");
  if (seconds != line.end() && seconds->is_object()) {
    status_.step_seconds.push_back(JsonNumber(*seconds, "total"));
    if (status_.step_seconds.size() > kPaceSteps) status_.step_seconds.pop_front();
  }
  const std::string text = FormatStepLine(line, status_);
  if (status_.steps > 0 && step >= status_.steps) status_.phase = RunPhase::kEvaluatingAfter;
  status_.eval_done = status_.eval_total = 0;
  return {text};
}

std::vector<std::string> StatusTracker::OnEval(const nlohmann::json& line) {
  EvalFigure figure;
  figure.step = JsonInteger(line, "step");
  figure.accuracy = JsonNumber(line, "accuracy");
  figure.low = JsonNumber(line, "low");
  figure.high = JsonNumber(line, "high");
  figure.problems = JsonInteger(line, "problems");
  figure.samples = JsonInteger(line, "samples");
  // The sampled figure is the one that training moves; greedy ones are printed, not tracked,
  // unless there is nothing else (the warm-up looks at greedy answers only).
  if (JsonText(line, "mode") != "greedy" || JsonText(line, "kind") == "sft") {
    status_.held_out = figure;
  }
  if (JsonText(line, "kind") == "before") {
    before_seconds_[JsonText(line, "mode")] = JsonNumber(line, "seconds");
    status_.before_seconds = 0;
    for (const auto& [mode, seconds] : before_seconds_) status_.before_seconds += seconds;
  }
  status_.eval_done = status_.eval_total = 0;
  reported_part_ = 0;
  return {FormatEvalLine(line)};
}

std::vector<std::string> StatusTracker::OnEvent(const nlohmann::json& line) {
  const std::string event = JsonText(line, "event");
  if (event == "phase") return OnPhase(JsonText(line, "phase"));
  if (event == "eval_progress") return OnEvalProgress(line);
  if (event == "sft_done") return {"warm-up done: " + JsonText(line, "message")};
  return {};
}

std::vector<std::string> StatusTracker::OnPhase(const std::string& phase) {
  struct Phase {
    const char* name;
    RunPhase phase;
    const char* line;
  };
  static constexpr Phase kPhases[] = {
      {"sft", RunPhase::kWarmUp, "supervised warm-up"},
      {"evaluate_before", RunPhase::kEvaluatingBefore, "evaluating before training"},
      {"train", RunPhase::kTraining, "training"},
      {"evaluate_after", RunPhase::kEvaluatingAfter, "evaluating after training"},
      {"finished", RunPhase::kFinishing, "finishing"}};
  for (const Phase& known : kPhases) {
    if (phase != known.name) continue;
    status_.phase = known.phase;
    status_.eval_done = status_.eval_total = 0;
    reported_part_ = 0;
    return {known.line};
  }
  return {};
}

std::vector<std::string> StatusTracker::OnEvalProgress(const nlohmann::json& line) {
  const std::string kind = JsonText(line, "kind");
  if (kind != "before" && kind != "after") return {};  // beside training, which goes on
  status_.phase = kind == "before" ? RunPhase::kEvaluatingBefore : RunPhase::kEvaluatingAfter;
  status_.eval_done = JsonInteger(line, "done");
  status_.eval_total = JsonInteger(line, "total");
  if (status_.eval_total <= 0) return {};
  // Plain output gets a line for every quarter.
  const int64_t part = status_.eval_done * 4 / status_.eval_total;
  if (part == reported_part_) return {};
  reported_part_ = part;
  return {absl::StrFormat("evaluating %s training, %s: %d of %d problems", kind,
                          JsonText(line, "mode"), status_.eval_done, status_.eval_total)};
}

ProgressDisplay::ProgressDisplay(const std::string& run_dir, Options options)
    : options_(options),
      tracker_(options.steps, options.sft_steps),
      metrics_(JoinPath(run_dir, "metrics.jsonl")),
      evals_(JoinPath(run_dir, "eval.jsonl")),
      events_(JoinPath(run_dir, "events.jsonl")) {}

void ProgressDisplay::Update() {
  std::vector<std::string> lines;
  const auto take = [&lines](std::vector<std::string> news, bool history) {
    if (history) return;
    for (std::string& line : news) lines.push_back(std::move(line));
  };
  metrics_.Poll(
      [&](const nlohmann::json& line, bool history) { take(tracker_.OnMetrics(line), history); });
  evals_.Poll(
      [&](const nlohmann::json& line, bool history) { take(tracker_.OnEval(line), history); });
  // Last: an event says what goes on now, a line of the others what is done.
  events_.Poll([&](const nlohmann::json& line, bool history) {
    if (!history) take(tracker_.OnEvent(line), false);
  });
  // A terminal has the live line for steps; what is worth keeping are the evaluations.
  for (const std::string& line : lines) {
    const bool keep = absl::StartsWith(line, "held-out") || absl::StartsWith(line, "warm-up done");
    if (!options_.terminal || keep) PrintLine(line);
  }
  if (!options_.terminal) return;
  const std::string live = FormatLiveLine(tracker_.status(), TerminalWidth(options_.out) - 1);
  if (live == shown_) return;
  shown_ = live;
  std::fprintf(options_.out, "\r\x1b[K%s", live.c_str());
  std::fflush(options_.out);
}

void ProgressDisplay::PrintLine(const std::string& line) {
  if (options_.terminal) {
    std::fprintf(options_.out, "\r\x1b[K%s\n%s", line.c_str(), shown_.c_str());
  } else {
    std::fprintf(options_.out, "%s\n", line.c_str());
  }
  std::fflush(options_.out);
}

void ProgressDisplay::Finish() {
  if (!options_.terminal) return;
  std::fprintf(options_.out, "\r\x1b[K");
  std::fflush(options_.out);
  shown_.clear();
}

}  // namespace millrace
