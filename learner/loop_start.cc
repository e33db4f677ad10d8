// Start and resumption of the learner's loop.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/files.h"
#include "common/process.h"
#include "common/status_macros.h"
#include "evaluation/interval.h"
#include "learner/loop.h"
#include "learner/sft.h"
#include "model/torch_status.h"
#include "spdlog/spdlog.h"

namespace millrace {
namespace {

using nlohmann::json;

constexpr absl::Duration kSlice = absl::Milliseconds(200);  // between looks at stopping()

// What a resumed run must have in common with the run that wrote the checkpoint. The number of
// steps, addresses and the folder may change.
std::string ConfigDigest(RunConfig config) {
  config.run.dir.clear();
  config.run.steps = 1;
  config.buffer.address.clear();
  config.weight_sync.address.clear();
  const std::string text = PrintConfig(config);
  return HexDigest(text.data(), text.size());
}

std::string ReferenceDir(const std::string& run_dir) { return JoinPath(run_dir, "reference"); }

absl::StatusOr<at::Device> DeviceOf(const RunConfig& config) {
  return CatchTorch(
      absl::StrCat("model.device \"", config.model.device, "\""),
      [&]() -> absl::StatusOr<at::Device> { return at::Device(config.model.device); });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transformer>> LearnerLoop::InitialModel() const {
  MR_ASSIGN_OR_RETURN(at::Device device, DeviceOf(config_));
  if (!config_.model.path.empty()) return Transformer::Load(config_.model.path, device);
  return Transformer::Create(run_model_.config, static_cast<uint64_t>(config_.run.seed), device);
}

absl::Status LearnerLoop::Start() {
  time_.Enter("start");
  MR_RETURN_IF_ERROR(LoadModels());
  const std::string checkpoints = JoinPath(run_dir_, "checkpoints");
  MR_RETURN_IF_ERROR(MakeDirectories(checkpoints));
  MR_ASSIGN_OR_RETURN(std::optional<std::string> latest, FindLatestCheckpoint(checkpoints));
  resumed_ = latest.has_value();
  if (resumed_) {
    MR_ASSIGN_OR_RETURN(state_, ReadTrainerState(*latest));
    if (state_.config_digest != ConfigDigest(config_)) {
      spdlog::warn("learner: the config is not the one {} was written with", *latest);
      Event("config_changed", {{"checkpoint", *latest}});
    }
    MR_ASSIGN_OR_RETURN(at::Device device, DeviceOf(config_));
    MR_ASSIGN_OR_RETURN(model_, Transformer::Load(*latest, device));
    earlier_seconds_ = state_.seconds;
    saved_step_ = state_.step;
  } else {
    MR_ASSIGN_OR_RETURN(model_, InitialModel());
  }
  MR_ASSIGN_OR_RETURN(const ComputeType compute,
                      ParseComputeType(config_.model.compute_dtype, model_->device().is_cpu()));
  model_->set_compute_type(compute);
  spdlog::info("learner: matrix products on {} in {}", model_->device().str(),
               ComputeTypeName(compute));
  state_.seed = config_.run.seed;
  state_.config_digest = ConfigDigest(config_);
  MR_ASSIGN_OR_RETURN(RewindResult rewind, ports_.rewind(static_cast<uint64_t>(state_.step)));
  // The learner may have died between the checkpoint and its commit.
  if (state_.step > 0) {
    MR_RETURN_IF_ERROR(
        ports_.commit(static_cast<uint64_t>(state_.step), CheckpointName(state_.step)));
  }
  state_.version = rewind.last_version + 1;
  MR_RETURN_IF_ERROR(log_.CutAfter(resumed_ ? state_.step : -1));
  Event(resumed_ ? "resumed" : "started", {{"step", state_.step},
                                           {"version", state_.version},
                                           {"returned_groups", rewind.returned_groups},
                                           {"checkpoint", latest.value_or("")}});
  spdlog::info("learner: {} at step {}, version {}; the buffer took {} groups back",
               resumed_ ? "resumed" : "started", state_.step, state_.version,
               rewind.returned_groups);
  MR_RETURN_IF_ERROR(WarmUpIfFresh());
  if (Stopping()) return absl::OkStatus();
  MR_RETURN_IF_ERROR(MakeTrainer(latest.value_or("")));
  MR_RETURN_IF_ERROR(Publish(state_.version));
  return WaitForMember();
}

absl::Status LearnerLoop::LoadModels() {
  MR_ASSIGN_OR_RETURN(run_model_, LoadRunModel(config_.model));
  Checkpointer::Options options;
  options.dir = JoinPath(run_dir_, "checkpoints");
  options.keep = config_.learner.keep_checkpoints;
  options.on_durable = [this](int64_t step, const std::string& name) -> absl::Status {
    if (step > 0) MR_RETURN_IF_ERROR(ports_.commit(static_cast<uint64_t>(step), name));
    Event("checkpoint", {{"step", step}, {"name", name}});
    return absl::OkStatus();
  };
  options.on_written = [this](double seconds) { metrics_.OnCheckpoint(seconds); };
  checkpointer_ = std::make_unique<Checkpointer>(std::move(options));
  return absl::OkStatus();
}

absl::Status LearnerLoop::WarmUpIfFresh() {
  if (resumed_ || config_.sft.steps == 0) return absl::OkStatus();
  time_.Enter("sft");
  Event("phase", {{"phase", "sft"}});
  WarmUpCallbacks callbacks;
  callbacks.stopping = [this] { return Stopping(); };
  absl::Status log_status;
  callbacks.on_step = [&](int64_t step, const SftStepReport& report) {
    metrics_.OnWarmUp(step, report.loss, -1);
    const json line = {{"step", step},
                       {"version", state_.version},
                       {"phase", "sft"},
                       {"unix_ms", absl::ToUnixMillis(Clock::Real()->Now())},
                       {"loss", report.loss},
                       {"lr", config_.sft.lr},
                       {"grad_norm", report.grad_norm},
                       {"entropy", report.entropy},
                       {"trained_tokens", report.tokens}};
    log_status.Update(log_.Metrics(line));
  };
  callbacks.on_check = [&](int64_t step, const GreedyResult& result) {
    metrics_.OnWarmUp(step, -1, result.accuracy());
    const Proportion p = SimpleProportion(result.problems, result.correct);
    const json line = {{"step", step},
                       {"version", state_.version},
                       {"kind", "sft"},
                       {"mode", "greedy"},
                       {"problems", result.problems},
                       {"samples", result.problems},
                       {"correct", result.correct},
                       {"accuracy", p.accuracy},
                       {"low", p.interval.low},
                       {"high", p.interval.high}};
    log_status.Update(log_.Eval(line));
  };
  MR_ASSIGN_OR_RETURN(WarmUpResult result,
                      WarmUp(config_, *run_model_.tokenizer, model_.get(), callbacks));
  MR_RETURN_IF_ERROR(log_status);
  spdlog::info("learner: {}", result.message);
  Event("sft_done", {{"steps", result.steps},
                     {"accuracy", result.accuracy},
                     {"in_window", result.end == WarmUpEnd::kInWindow},
                     {"message", result.message}});
  if (result.end == WarmUpEnd::kStopped) return absl::OkStatus();
  if (config_.learner.kl_beta != 0) {
    MR_RETURN_IF_ERROR(MakeDirectories(ReferenceDir(run_dir_)));
    MR_RETURN_IF_ERROR(model_->Save(ReferenceDir(run_dir_), "F32"));
  }
  // So that a learner that dies later need not warm up again.
  state_.seconds = PhaseSeconds();
  MR_RETURN_IF_ERROR(checkpointer_->Save(*model_, *run_model_.tokenizer, nullptr, state_));
  saved_step_ = 0;
  return absl::OkStatus();
}

absl::Status LearnerLoop::MakeTrainer(const std::string& checkpoint) {
  time_.Enter("start");
  if (config_.learner.kl_beta != 0) {
    if (!resumed_) {
      MR_ASSIGN_OR_RETURN(reference_, model_->Clone());
    } else if (config_.sft.steps > 0) {
      MR_ASSIGN_OR_RETURN(reference_, Transformer::Load(ReferenceDir(run_dir_), model_->device()));
    } else {
      MR_ASSIGN_OR_RETURN(reference_, InitialModel());
    }
  }
  if (reference_ != nullptr) reference_->set_compute_type(model_->compute_type());
  MR_ASSIGN_OR_RETURN(TrainerOptions options, MakeTrainerOptions(config_));
  MR_ASSIGN_OR_RETURN(trainer_,
                      Trainer::Create(model_.get(), std::move(reference_), std::move(options)));
  if (!resumed_) return absl::OkStatus();
  trainer_->Restore(state_.schedule_updates, state_.skipped_updates);
  if (state_.optimizer_updates == 0) return absl::OkStatus();
  return RestoreOptimizer(checkpoint, *model_, state_, &trainer_->optimizer());
}

absl::Status LearnerLoop::WaitForMember() {
  time_.Enter("wait_member");
  const absl::Duration patience =
      absl::Seconds(config_.supervisor.start_timeout_seconds +
                    config_.weight_sync.transfer_seconds + config_.weight_sync.activate_seconds);
  const absl::Time deadline = Clock::Real()->Now() + patience;
  for (;;) {
    const absl::Status status = ports_.wait_activated(state_.version, 1, kSlice);
    if (status.ok() || Stopping()) return absl::OkStatus();
    if (status.code() != absl::StatusCode::kDeadlineExceeded) return status;
    if (Clock::Real()->Now() >= deadline) {
      return GaveUp(absl::DeadlineExceededError(
          absl::StrCat("the learner waited ", absl::FormatDuration(patience),
                       " for a rollout server to activate version ", state_.version,
                       "; last seen: ", status.message())));
    }
  }
}

}  // namespace millrace
