#include "learner/loop.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/process.h"
#include "common/status_macros.h"
#include "spdlog/spdlog.h"

namespace millrace {
namespace {

using nlohmann::json;

constexpr absl::Duration kBatchSlice = absl::Milliseconds(200);  // between looks at stopping()

double SecondsSince(absl::Time start) {
  return absl::ToDoubleSeconds(Clock::Real()->Now() - start);
}

double MeanOf(const std::vector<int64_t>& values) {
  double sum = 0;
  for (int64_t value : values) sum += static_cast<double>(value);
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

}  // namespace

LearnerLoop::LearnerLoop(RunConfig config, std::string run_dir, Metrics* metrics,
                         LearnerPorts ports)
    : config_(std::move(config)),
      run_dir_(std::move(run_dir)),
      ports_(std::move(ports)),
      log_(run_dir_),
      metrics_(metrics),
      time_(metrics, "learner") {}

LearnerLoop::~LearnerLoop() { JoinPeriodicEval(/*cancel=*/true); }

void LearnerLoop::Event(const std::string& event, const json& fields) const {
  if (ports_.event) {
    ports_.event(event, fields.dump(-1, ' ', false, json::error_handler_t::replace));
  }
}

std::map<std::string, double> LearnerLoop::PhaseSeconds() const {
  std::map<std::string, double> seconds = earlier_seconds_;
  for (const auto& [phase, value] : time_.Seconds()) seconds[phase] += value;
  return seconds;
}

absl::Status LearnerLoop::Run() {
  absl::Status status = Start();
  if (status.ok() && !Stopping()) status = EvaluateBefore();
  if (status.ok() && !Stopping()) status = TrainSteps();
  if (status.ok() && !Stopping()) return Finish();
  JoinPeriodicEval(/*cancel=*/true);
  // Told to stop, or failed: what was learned since the last checkpoint is kept if it can be.
  if (trainer_ != nullptr && between_steps_ && state_.step > std::max<int64_t>(saved_step_, 0)) {
    status.Update(SaveCheckpoint());
  }
  if (checkpointer_ != nullptr) status.Update(checkpointer_->Wait());
  if (status.ok()) Event("stopped", {{"step", state_.step}, {"version", state_.version}});
  return status;
}

absl::Status LearnerLoop::TrainSteps() {
  Event("phase", {{"phase", "train"}});
  while (state_.step < config_.run.steps && !Stopping()) {
    MR_RETURN_IF_ERROR(OneStep(state_.step + 1));
    const bool last = state_.step == config_.run.steps || Stopping();
    if (config_.eval.every > 0 && state_.step % config_.eval.every == 0 && !last) {
      StartPeriodicEval();
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Batch> LearnerLoop::AwaitBatch(int64_t step) {
  const absl::Duration patience = absl::Seconds(config_.buffer.batch_wait_seconds);
  const absl::Time deadline = Clock::Real()->Now() + patience;
  for (;;) {
    const absl::Duration left = deadline - Clock::Real()->Now();
    absl::StatusOr<Batch> batch =
        ports_.next_batch(static_cast<uint64_t>(step), state_.version,
                          std::clamp(left, absl::ZeroDuration(), kBatchSlice));
    if (batch.ok() || batch.status().code() != absl::StatusCode::kDeadlineExceeded) return batch;
    if (Stopping()) return absl::CancelledError("stopping");
    if (Clock::Real()->Now() >= deadline) {
      return GaveUp(absl::DeadlineExceededError(absl::StrCat(
          "the learner waited ", absl::FormatDuration(patience), " for the batch of step ", step,
          " (version ", state_.version, "); last seen: ", batch.status().message())));
    }
  }
}

absl::Status LearnerLoop::OneStep(int64_t step) {
  const absl::Time start = Clock::Real()->Now();
  std::map<std::string, double> seconds;
  auto enter = [&, from = start](const std::string& next, const std::string& ended) mutable {
    seconds[ended] = SecondsSince(from);
    from = Clock::Real()->Now();
    time_.Enter(next);
  };
  time_.Enter("wait_batch");
  absl::StatusOr<Batch> batch = AwaitBatch(step);
  if (absl::IsCancelled(batch.status()) && Stopping()) return absl::OkStatus();
  if (!batch.ok()) return batch.status();
  enter("train", "wait_batch");
  between_steps_ = false;
  MR_ASSIGN_OR_RETURN(StepReport report, trainer_->Step(*batch, state_.version));
  enter("publish", "train");
  const int64_t trained_on = state_.version;
  MR_RETURN_IF_ERROR(Publish(state_.version + 1));
  enter("checkpoint", "publish");
  state_.step = step;
  state_.trained_tokens += report.trained_tokens;
  state_.trained_groups += report.groups;
  for (const auto& [reason, count] : batch->dropped) state_.dropped[reason] += count;
  const bool last = step == config_.run.steps;
  std::shared_ptr<Checkpointer::Snapshot> snapshot;
  if (last || step % std::max<int64_t>(config_.learner.checkpoint_every, 1) == 0) {
    // Nothing changes the weights after the last step.
    MR_ASSIGN_OR_RETURN(
        snapshot, TakeSnapshot(last ? Checkpointer::Memory::kShare : Checkpointer::Memory::kCopy));
  }
  enter("log", "checkpoint");
  seconds["total"] = SecondsSince(start);
  for (const auto& [phase, value] : seconds) metrics_.OnPhaseSeconds(phase, value);
  metrics_.OnStep(step, report,
                  static_cast<double>(report.trained_tokens) / std::max(seconds["total"], 1e-9));
  metrics_.OnDropped(batch->dropped);
  spdlog::info("learner: step {} on version {}: reward {:.3f}, {} groups, {} tokens, {:.2f} s",
               step, trained_on, report.reward_mean, report.groups, report.trained_tokens,
               seconds["total"]);
  MR_RETURN_IF_ERROR(WriteStepLine(*batch, report, seconds));
  between_steps_ = true;
  // After its line: a step that is in a checkpoint is in metrics.jsonl.
  if (snapshot != nullptr) {
    checkpointer_->Write(std::move(snapshot));
    saved_step_ = step;
  }
  return absl::OkStatus();
}

absl::Status LearnerLoop::WriteStepLine(const Batch& batch, const StepReport& report,
                                        const std::map<std::string, double>& seconds) {
  // The buffer's own count, since servers push what is never trained on, too.
  MR_ASSIGN_OR_RETURN(BufferStats stats, ports_.stats());
  const UpdateReport& first = report.updates.front();
  const UpdateReport& update = report.updates.back();
  int64_t skipped = 0;
  for (const UpdateReport& u : report.updates) skipped += u.skipped;
  const int64_t stalest = report.staleness.empty()
                              ? 0
                              : *std::max_element(report.staleness.begin(), report.staleness.end());
  const double total = seconds.at("total");
  return log_.Metrics(
      {{"step", state_.step},
       {"version", state_.version},
       {"phase", "grpo"},
       {"unix_ms", absl::ToUnixMillis(Clock::Real()->Now())},
       {"reward_mean", report.reward_mean},
       {"reward_std", report.reward_std},
       {"groups", report.groups},
       {"trajectories", report.trajectories},
       {"no_verdict", report.no_verdict},
       {"group_ids", report.group_ids},
       {"dropped", batch.dropped},
       {"response_tokens_mean", report.response_tokens_mean},
       {"truncated_fraction", report.truncated_fraction},
       {"entropy", first.entropy},
       {"kl", update.kl},
       {"clip_fraction", update.clip_low + update.clip_high},
       {"clip_low", update.clip_low},
       {"clip_high", update.clip_high},
       {"ratio_mean", update.ratio_mean},
       {"ratio_max", update.ratio_max},
       {"sampler_kl", update.sampler_kl},
       {"grad_norm", update.grad_norm},
       {"lr", update.lr},
       {"loss", update.loss},
       {"skipped_updates", skipped},
       {"logprob_diff_mean", first.logprob_diff_mean},
       {"logprob_diff_max", first.logprob_diff_max},
       {"staleness_mean", MeanOf(report.staleness)},
       {"staleness_max", stalest},
       {"generated_tokens", stats.generated_tokens},
       {"trained_tokens", state_.trained_tokens},
       {"step_tokens", report.trained_tokens},
       {"forward_tokens", report.forward_tokens},
       {"micro_batches", report.micro_batches},
       {"tokens_per_second", static_cast<double>(report.trained_tokens) / std::max(total, 1e-9)},
       {"seconds", seconds}});
}

absl::Status LearnerLoop::Publish(int64_t version) {
  time_.Enter("publish");
  // The buffer hears of it first: a process that dies between the two calls must not leave members
  // with a version that the next one, which counts on from the buffer's, gives to other weights.
  MR_RETURN_IF_ERROR(ports_.set_version(version, /*finished=*/false));
  const absl::Time start = Clock::Real()->Now();
  // On the CPU the parameters themselves; elsewhere one copy of all of them.
  const at::Tensor host = model_->flat_parameters().detach().to(at::kCPU);
  const auto* bytes = static_cast<const std::byte*>(host.const_data_ptr());
  std::vector<NamedSpan> spans;
  for (const NamedParameter& parameter : model_->parameters()) {
    const auto size = static_cast<size_t>(parameter.tensor.numel()) * sizeof(float);
    spans.push_back({parameter.name, "F32", parameter.tensor.sizes().vec(), {bytes, size}});
    bytes += size;
  }
  MR_RETURN_IF_ERROR(ports_.publish(version, spans));
  state_.version = version;
  metrics_.OnPublish(version, SecondsSince(start), static_cast<int64_t>(host.nbytes()));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Checkpointer::Snapshot>> LearnerLoop::TakeSnapshot(
    Checkpointer::Memory memory) {
  time_.Enter("checkpoint");
  state_.schedule_updates = trainer_->schedule_updates();
  state_.skipped_updates = trainer_->skipped_updates();
  state_.seconds = PhaseSeconds();
  return checkpointer_->Take({*model_, *run_model_.tokenizer, &trainer_->optimizer(), memory},
                             state_);
}

absl::Status LearnerLoop::SaveCheckpoint() {
  MR_ASSIGN_OR_RETURN(std::shared_ptr<Checkpointer::Snapshot> snapshot,
                      TakeSnapshot(Checkpointer::Memory::kShare));
  checkpointer_->Write(std::move(snapshot));
  saved_step_ = state_.step;
  return absl::OkStatus();
}

}  // namespace millrace
