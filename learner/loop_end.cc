// Evaluations and the end of the learner's loop.
#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/files.h"
#include "common/process.h"
#include "common/status_macros.h"
#include "evaluation/interval.h"
#include "learner/loop.h"
#include "spdlog/spdlog.h"

namespace millrace {
namespace {

using nlohmann::json;

// A small evaluation runs while versions change, so a shard is short and may be tried often.
constexpr int64_t kPeriodicShard = 8;
constexpr int64_t kPeriodicAttempts = 20;
constexpr absl::Duration kPeriodicTimeout = absl::Minutes(10);

json Figure(const json& line) {
  json figure;
  for (const char* key : {"problems", "samples", "correct", "accuracy", "low", "high",
                          "tokens_mean", "truncated", "seconds", "version"}) {
    if (line.contains(key)) figure[key] = line[key];
  }
  return figure;
}

json BaselineFigure(const json& line) {
  const auto problems = line.at("problems").get<int64_t>();
  const auto correct = line.at("baseline_correct").get<int64_t>();
  const Proportion p = SimpleProportion(problems, correct);
  return {{"problems", problems},
          {"correct", correct},
          {"accuracy", p.accuracy},
          {"low", p.interval.low},
          {"high", p.interval.high}};
}

}  // namespace

EvalRequest LearnerLoop::MakeEvalRequest(const std::string& kind, const std::string& mode) const {
  const bool periodic = kind == "periodic";
  EvalRequest request;
  request.kind = kind;
  request.mode = mode;
  request.step = state_.step;
  request.version = periodic ? -1 : state_.version;
  request.problems = periodic ? config_.eval.every_problems : config_.eval.problems;
  request.samples = mode == "greedy" || periodic ? 1 : config_.eval.samples;
  // The full distribution, whatever the filters of training are.
  request.temperature = mode == "greedy" ? 0 : 1;
  request.max_new_tokens = config_.rollout.max_new_tokens;
  request.seed = static_cast<uint64_t>(config_.run.seed) + (uint64_t{1} << 40);
  if (periodic) {
    request.shard_problems = kPeriodicShard;
    request.max_attempts = kPeriodicAttempts;
    request.timeout = kPeriodicTimeout;
    request.cancelled = [this] { return periodic_cancel_.load() || Stopping(); };
  } else {
    request.cancelled = [this] { return Stopping(); };
  }
  return request;
}

// Nothing is published from here to the end, so the version stays the active one.
absl::Status LearnerLoop::EvaluateNow(const std::string& kind) {
  time_.Enter("evaluate");
  Event("phase", {{"phase", absl::StrCat("evaluate_", kind)}});
  MR_ASSIGN_OR_RETURN(std::vector<json> lines, log_.EvalLines());
  for (const std::string mode : {"sampled", "greedy"}) {
    if (mode == "greedy" && !config_.eval.greedy) continue;
    const bool there = std::any_of(lines.begin(), lines.end(), [&](const json& line) {
      return line.value("kind", "") == kind && line.value("mode", "") == mode &&
             line.value("step", int64_t{-1}) == state_.step;
    });
    if (there) continue;
    absl::StatusOr<EvalOutcome> outcome = ports_.evaluate(MakeEvalRequest(kind, mode));
    if (absl::IsCancelled(outcome.status()) && Stopping()) return absl::OkStatus();
    if (absl::IsDeadlineExceeded(outcome.status())) return GaveUp(outcome.status());
    if (!outcome.ok()) return outcome.status();
    metrics_.OnEval(*outcome);
    spdlog::info("learner: held-out {} {}: {:.1f} % [{:.1f}, {:.1f}]", kind, mode,
                 100 * outcome->accuracy, 100 * outcome->low, 100 * outcome->high);
    MR_RETURN_IF_ERROR(log_.Eval(ToJson(*outcome)));
  }
  return absl::OkStatus();
}

absl::Status LearnerLoop::EvaluateBefore() {
  // A resumed run has it in eval.jsonl, or can't have it any more.
  if (config_.eval.problems == 0 || state_.step > 0) return absl::OkStatus();
  return EvaluateNow("before");
}

void LearnerLoop::StartPeriodicEval() {
  if (periodic_running_.load()) {
    Event("eval_skipped", {{"step", state_.step}, {"why", "the one before still runs"}});
    return;
  }
  if (periodic_.joinable()) periodic_.join();
  periodic_running_ = true;
  periodic_ = std::thread([this, request = MakeEvalRequest("periodic", "sampled")] {
    absl::StatusOr<EvalOutcome> outcome = ports_.evaluate(request);
    absl::Status status = outcome.status();
    if (outcome.ok()) {
      metrics_.OnEval(*outcome);
      status = log_.Eval(ToJson(*outcome));
    }
    // Training goes on without it.
    if (!status.ok() && !absl::IsCancelled(status)) {
      spdlog::warn("learner: evaluation at step {}: {}", request.step, status.ToString());
      Event("eval_failed", {{"step", request.step}, {"error", status.ToString()}});
    }
    periodic_running_ = false;
  });
}

void LearnerLoop::JoinPeriodicEval(bool cancel) {
  if (cancel) periodic_cancel_ = true;
  if (periodic_.joinable()) periodic_.join();
}

absl::Status LearnerLoop::Finish() {
  JoinPeriodicEval(/*cancel=*/true);
  if (config_.eval.problems > 0) MR_RETURN_IF_ERROR(EvaluateNow("after"));
  time_.Enter("end");
  if (trainer_ != nullptr && state_.step > saved_step_) MR_RETURN_IF_ERROR(SaveCheckpoint());
  MR_RETURN_IF_ERROR(checkpointer_->Wait());
  if (Stopping()) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(BufferStats stats, ports_.stats());
  MR_RETURN_IF_ERROR(WriteSummary(stats));
  Event("phase", {{"phase", "finished"}});
  MR_RETURN_IF_ERROR(ports_.set_version(state_.version, /*finished=*/true));
  ports_.finish();
  return absl::OkStatus();
}

absl::Status LearnerLoop::WriteSummary(const BufferStats& stats) {
  MR_ASSIGN_OR_RETURN(std::vector<json> lines, log_.EvalLines());
  json summary = {
      {"run", config_.run.name},
      {"model", config_.model.path.empty() ? absl::StrCat("random ", config_.model.architecture)
                                           : config_.model.path},
      {"task", config_.task.name},
      {"seed", config_.run.seed},
      {"steps", state_.step},
      {"versions", state_.version + 1},
      {"before", json::object()},
      {"after", json::object()},
      {"generated_tokens", stats.generated_tokens},
      {"trained_tokens", state_.trained_tokens},
      {"groups_trained", state_.trained_groups},
      {"dropped_groups", stats.dropped_groups},
      {"skipped_updates", trainer_->skipped_updates()},
      {"seconds", PhaseSeconds()}};
  for (const json& line : lines) {
    const std::string kind = line.value("kind", "");
    if (kind == "sft") summary["sft"] = {{"steps", line["step"]}, {"greedy", Figure(line)}};
    if (kind != "before" && kind != "after") continue;
    summary[kind][line.value("mode", "")] = Figure(line);
    if (line.contains("baseline_correct")) summary["baseline"] = BaselineFigure(line);
  }
  return WriteFileAtomically(JoinPath(run_dir_, "summary.json"), summary.dump(2) + "\n");
}

}  // namespace millrace
