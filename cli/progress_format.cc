#include "cli/progress_format.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cli/progress.h"
#include "common/files.h"

namespace millrace {
namespace {

const char* PhaseName(RunPhase phase) {
  switch (phase) {
    case RunPhase::kStarting:
      return "starting";
    case RunPhase::kEvaluatingBefore:
      return "evaluating before";
    case RunPhase::kWarmUp:
      return "warm-up";
    case RunPhase::kTraining:
      return "training";
    case RunPhase::kEvaluatingAfter:
      return "evaluating after";
    case RunPhase::kFinishing:
      return "finishing";
  }
  return "";
}

// "zero_variance 12, stale 1".
std::string FormatCounts(const nlohmann::json& counts) {
  std::vector<std::string> parts;
  for (const auto& [name, count] : counts.items()) {
    if (count.is_number() && count.get<double>() > 0) {
      parts.push_back(absl::StrFormat("%s %d", name, count.get<int64_t>()));
    }
  }
  return absl::StrJoin(parts, ", ");
}

int64_t SumCounts(const nlohmann::json& counts) {
  int64_t sum = 0;
  for (const auto& [name, count] : counts.items()) {
    if (count.is_number()) sum += count.get<int64_t>();
  }
  return sum;
}

std::string Percent(double fraction) { return absl::StrFormat("%.1f %%", 100 * fraction); }

// "24.1 % (95 %: 20.8 % to 27.7 %; 193 of 800 right)".
std::string FormatAccuracy(const nlohmann::json& figure) {
  return absl::StrFormat("%s (95 %%: %s to %s; %d of %d right)",
                         Percent(JsonNumber(figure, "accuracy")),
                         Percent(JsonNumber(figure, "low")), Percent(JsonNumber(figure, "high")),
                         JsonInteger(figure, "correct"), JsonInteger(figure, "samples"));
}

std::string FormatBytes(double bytes) {
  return bytes >= 1e9 ? absl::StrFormat("%.2f GB", bytes / 1e9)
                      : absl::StrFormat("%.0f MB", bytes / 1e6);
}

void AppendRow(std::string* text, const std::string& name, const std::string& value) {
  absl::StrAppendFormat(text, "  %-17s %s\n", name, value);
}

void AppendFigures(std::string* text, const nlohmann::json& summary) {
  for (const char* mode : {"sampled", "greedy"}) {
    for (const char* when : {"before", "after"}) {
      const nlohmann::json& figure = JsonObject(JsonObject(summary, when), mode);
      if (figure.empty()) continue;
      const std::string name = absl::StrCat(when, mode == std::string("greedy") ? ", greedy" : "");
      AppendRow(text, name, FormatAccuracy(figure));
    }
  }
  const nlohmann::json& baseline = JsonObject(summary, "baseline");
  if (!baseline.empty()) {
    AppendRow(text, "baseline",
              absl::StrCat(Percent(JsonNumber(baseline, "accuracy")), " (plain code, no model)"));
  }
}

void AppendWork(std::string* text, const nlohmann::json& summary) {
  AppendRow(text, "steps",
            absl::StrFormat("%d (versions %d)", JsonInteger(summary, "steps"),
                            JsonInteger(summary, "versions")));
  AppendRow(text, "tokens",
            absl::StrFormat("%d generated, %d trained on", JsonInteger(summary, "generated_tokens"),
                            JsonInteger(summary, "trained_tokens")));
  const nlohmann::json& dropped = JsonObject(summary, "dropped_groups");
  std::string groups = absl::StrFormat("%d trained on, %d dropped",
                                       JsonInteger(summary, "groups_trained"), SumCounts(dropped));
  if (const std::string reasons = FormatCounts(dropped); !reasons.empty()) {
    absl::StrAppend(&groups, " (", reasons, ")");
  }
  AppendRow(text, "groups", groups);
  std::vector<std::string> phases;
  for (const auto& [phase, seconds] : JsonObject(summary, "seconds").items()) {
    const double value = seconds.is_number() ? seconds.get<double>() : 0;
    if (value < 0.05) continue;
    phases.push_back(value < 10 ? absl::StrFormat("%s %.1fs", phase, value)
                                : absl::StrCat(phase, " ", FormatSeconds(value)));
  }
  if (!phases.empty()) AppendRow(text, "time", absl::StrJoin(phases, ", "));
  std::vector<std::string> peaks;
  for (const auto& [process, bytes] : JsonObject(summary, "peak_memory_bytes").items()) {
    if (bytes.is_number()) {
      peaks.push_back(absl::StrCat(process, " ", FormatBytes(bytes.get<double>())));
    }
  }
  if (!peaks.empty()) AppendRow(text, "peak memory", absl::StrJoin(peaks, ", "));
}

}  // namespace

double JsonNumber(const nlohmann::json& object, const char* key, double otherwise) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<double>() : otherwise;
}

int64_t JsonInteger(const nlohmann::json& object, const char* key, int64_t otherwise) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<int64_t>() : otherwise;
}

std::string JsonText(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

const nlohmann::json& JsonObject(const nlohmann::json& object, const char* key) {
  static const auto* const empty = new nlohmann::json(nlohmann::json::object());
  const auto it = object.find(key);
  return it != object.end() && it->is_object() ? *it : *empty;
}

std::string FormatSeconds(double seconds) {
  const int64_t s = static_cast<int64_t>(std::llround(std::max(0.0, seconds)));
  if (s >= 3600) return absl::StrFormat("%dh%02dm", s / 3600, s / 60 % 60);
  if (s >= 60) return absl::StrFormat("%dm%02ds", s / 60, s % 60);
  return absl::StrFormat("%ds", s);
}

std::optional<double> SecondsLeft(const RunStatus& status) {
  if (status.step_seconds.empty() || status.phase != RunPhase::kTraining) return std::nullopt;
  const double pace = std::accumulate(status.step_seconds.begin(), status.step_seconds.end(), 0.0) /
                      static_cast<double>(status.step_seconds.size());
  // The evaluation after takes about as long as the one before.
  return pace * static_cast<double>(std::max<int64_t>(0, status.steps - status.step)) +
         status.before_seconds;
}

std::string FormatBar(double fraction, int width) {
  const int full = static_cast<int>(std::lround(std::clamp(fraction, 0.0, 1.0) * width));
  return absl::StrCat("[", std::string(static_cast<size_t>(full), '#'),
                      std::string(static_cast<size_t>(width - full), '.'), "]");
}

std::string FormatLiveLine(const RunStatus& status, int width) {
  std::vector<std::string> parts;
  const auto ratio = [](int64_t done, int64_t total) {
    return total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0.0;
  };
  constexpr int kBar = 20;
  switch (status.phase) {
    case RunPhase::kStarting:
    case RunPhase::kFinishing:
      parts.push_back(PhaseName(status.phase));
      break;
    case RunPhase::kEvaluatingBefore:
    case RunPhase::kEvaluatingAfter:
      parts.push_back(absl::StrCat(
          PhaseName(status.phase), " ", FormatBar(ratio(status.eval_done, status.eval_total), kBar),
          status.eval_total > 0
              ? absl::StrFormat(" %d/%d problems", status.eval_done, status.eval_total)
              : ""));
      break;
    case RunPhase::kWarmUp:
      parts.push_back(absl::StrFormat("%s %s %d/%d at most", PhaseName(status.phase),
                                      FormatBar(ratio(status.sft_step, status.sft_steps), kBar),
                                      status.sft_step, status.sft_steps));
      parts.push_back(absl::StrFormat("loss %.3f", status.sft_loss));
      break;
    case RunPhase::kTraining:
      parts.push_back(absl::StrFormat("%s %s %d/%d", PhaseName(status.phase),
                                      FormatBar(ratio(status.step, status.steps), kBar),
                                      status.step, status.steps));
      parts.push_back(absl::StrFormat("reward %.2f", status.reward));
      break;
  }
  if (status.held_out.has_value()) {
    parts.push_back(absl::StrFormat("held-out %s", Percent(status.held_out->accuracy)));
  }
  if (status.phase == RunPhase::kTraining) {
    parts.push_back(absl::StrFormat("staleness %.1f", status.staleness_mean));
    parts.push_back(absl::StrFormat("%.0f tokens/s", status.tokens_per_second));
  }
  if (const auto left = SecondsLeft(status)) parts.push_back(FormatSeconds(*left) + " left");
  const std::string line = absl::StrJoin(parts, " | ");
  return line.substr(0, static_cast<size_t>(std::max(0, width)));  // ASCII only: bytes are columns
}

std::string FormatStepLine(const nlohmann::json& metrics, const RunStatus& status) {
  if (JsonText(metrics, "phase") == "sft") {
    return absl::StrFormat("warm-up step %d of at most %d: loss %.4f, lr %.2g",
                           JsonInteger(metrics, "step"), status.sft_steps,
                           JsonNumber(metrics, "loss"), JsonNumber(metrics, "lr"));
  }
  std::string line = absl::StrFormat(
      "step %d/%d: reward %.3f, staleness %.2f (max %d), %.0f tokens/s, %.1f s",
      JsonInteger(metrics, "step"), status.steps, JsonNumber(metrics, "reward_mean"),
      JsonNumber(metrics, "staleness_mean"), JsonInteger(metrics, "staleness_max"),
      JsonNumber(metrics, "tokens_per_second"),
      JsonNumber(JsonObject(metrics, "seconds"), "total"));
  absl::StrAppendFormat(&line, ", %d groups", JsonInteger(metrics, "groups"));
  if (const std::string dropped = FormatCounts(JsonObject(metrics, "dropped")); !dropped.empty()) {
    absl::StrAppend(&line, " (dropped: ", dropped, ")");
  }
  absl::StrAppendFormat(&line, ", entropy %.3f, grad norm %.3g", JsonNumber(metrics, "entropy"),
                        JsonNumber(metrics, "grad_norm"));
  if (const auto left = SecondsLeft(status))
    absl::StrAppend(&line, ", ", FormatSeconds(*left), " left");
  return line;
}

std::string FormatEvalLine(const nlohmann::json& eval) {
  const std::string kind = JsonText(eval, "kind");
  std::string when = absl::StrFormat("at step %d", JsonInteger(eval, "step"));
  if (kind == "before") when = "before training";
  if (kind == "after") when = "after training";
  if (kind == "sft") when = absl::StrFormat("at warm-up step %d", JsonInteger(eval, "step"));
  return absl::StrFormat("held-out %s, %s: %s", when, JsonText(eval, "mode"),
                         FormatAccuracyReport(eval));
}

std::string FormatAccuracyReport(const nlohmann::json& eval) {
  std::string line = FormatAccuracy(eval);
  if (eval.contains("baseline_accuracy")) {
    absl::StrAppend(&line, "; baseline without a model ",
                    Percent(JsonNumber(eval, "baseline_accuracy")));
  }
  return line;
}

std::string ShellWord(const std::string& text) {
  const auto plain = [](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("/._-+,:=@%", absl::string_view(&c, 1));
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string FormatSummary(const nlohmann::json& summary, const std::string& run_dir) {
  std::string text =
      absl::StrFormat("\nRun %s is finished (task %s, seed %d).\n\n", JsonText(summary, "run"),
                      JsonText(summary, "task"), JsonInteger(summary, "seed"));
  AppendFigures(&text, summary);
  AppendWork(&text, summary);
  absl::StrAppend(&text, "\nWhere things are:\n");
  AppendRow(&text, "summary", JoinPath(run_dir, "summary.json"));
  AppendRow(&text, "config", JoinPath(run_dir, "config.toml"));
  AppendRow(&text, "curves", JoinPath(run_dir, "metrics.jsonl") + " (a line a step), eval.jsonl");
  AppendRow(&text, "trajectories", JoinPath(run_dir, "buffer.sqlite"));
  AppendRow(&text, "model",
            JoinPath(run_dir, "checkpoints") + " (Hugging Face layout; `latest` names the newest)");
  AppendRow(&text, "logs", JoinPath(run_dir, "logs"));
  absl::StrAppend(
      &text, "\nLook at what it wrote:  sqlite3 ", ShellWord(JoinPath(run_dir, "buffer.sqlite")),
      " \"select reward, completion_text from trajectories order by id desc limit 5\"\n",
      "Talk to the result:     millrace chat ", ShellWord(run_dir), "\n",
      "Measure it again:       millrace eval ", ShellWord(run_dir), " --problems 200\n");
  return text;
}

}  // namespace millrace
