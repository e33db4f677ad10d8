#include "learner/train_step.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/process.h"
#include "common/status_macros.h"
#include "learner/packer.h"

namespace millrace {
namespace {

// Sampler and learner round the same weights, but their activations differ in the last bits before
// they are rounded: up to 0.1 was seen for SmolLM2-135M, a mean of 0.005.
constexpr double kBf16Tolerance = 0.5;

bool HasVerdict(const Trajectory& trajectory) {
  return trajectory.status == TrajectoryStatus::kCompleted ||
         trajectory.status == TrajectoryStatus::kTruncated;
}

std::string Describe(const Trajectory& t) {
  return absl::StrCat("group ", t.key.group_id, " index ", t.key.index, " attempt ", t.key.attempt,
                      " (task ", t.task, ", problem ", t.problem_id, ", server ", t.server, ")");
}

// Version that token `token` was sampled under; -1 when no span covers it.
int64_t VersionOf(const Trajectory& trajectory, int32_t token) {
  for (const VersionSpan& span : trajectory.versions) {
    if (static_cast<uint32_t>(token) >= span.begin && static_cast<uint32_t>(token) < span.end) {
      return span.version;
    }
  }
  return -1;
}

void MeanAndDeviation(const std::vector<double>& values, double* mean, double* deviation) {
  *mean = *deviation = 0;
  if (values.empty()) return;
  for (double value : values) *mean += value / static_cast<double>(values.size());
  if (values.size() < 2) return;
  double squares = 0;
  for (double value : values) squares += (value - *mean) * (value - *mean);
  *deviation = std::sqrt(squares / static_cast<double>(values.size() - 1));
}

}  // namespace

// The trajectories of a batch that are trained on.
struct Trainer::Members {
  std::vector<const Trajectory*> trajectories;
  std::vector<PackInput> inputs;
  std::vector<double> advantages;  // one a trajectory
  std::vector<double> weights;     // of each token of a trajectory
  double temperature = 1;
};

absl::StatusOr<TrainerOptions> MakeTrainerOptions(const RunConfig& config) {
  const RunConfig::Learner& l = config.learner;
  TrainerOptions o;
  MR_ASSIGN_OR_RETURN(o.loss, ParseLossType(l.loss));
  MR_ASSIGN_OR_RETURN(o.advantage.scale, ParseAdvantageScale(l.advantage_scale));
  MR_ASSIGN_OR_RETURN(o.schedule.kind, ParseScheduleKind(l.schedule));
  o.policy.clip_low = l.clip_low;
  o.policy.clip_high = l.clip_high;
  o.policy.kl_beta = l.kl_beta;
  o.max_completion_tokens = config.rollout.max_new_tokens;
  o.updates_per_batch = l.updates_per_batch;
  o.token_budget = l.token_budget;
  o.logit_chunk = l.logit_chunk;
  o.schedule.lr = l.lr;
  o.schedule.warmup = l.warmup_steps * l.updates_per_batch;
  o.schedule.total = config.run.steps * l.updates_per_batch;
  o.schedule.min_ratio = l.min_lr_ratio;
  o.optimizer.beta1 = l.adam_beta1;
  o.optimizer.beta2 = l.adam_beta2;
  o.optimizer.eps = l.adam_eps;
  o.optimizer.weight_decay = l.weight_decay;
  o.optimizer.max_grad_norm = l.max_grad_norm;
  o.optimizer.threads = ComputeThreads(l.threads);
  o.self_check_tolerance = l.self_check_tolerance;
  return o;
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(Transformer* model,
                                                         std::unique_ptr<Transformer> reference,
                                                         TrainerOptions options) {
  if (options.policy.kl_beta != 0 && reference == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("learner.kl_beta is ", options.policy.kl_beta, " but there is no reference"));
  }
  auto trainer =
      std::unique_ptr<Trainer>(new Trainer(model, std::move(reference), std::move(options)));
  MR_ASSIGN_OR_RETURN(trainer->optimizer_,
                      AdamW::Create(model->flat_parameters(), model->flat_gradients(),
                                    DecayRanges(*model), trainer->options_.optimizer));
  return trainer;
}

Trainer::Trainer(Transformer* model, std::unique_ptr<Transformer> reference, TrainerOptions options)
    : model_(model), reference_(std::move(reference)), options_(std::move(options)) {}

void Trainer::Restore(int64_t schedule_updates, int64_t skipped_updates) {
  schedule_updates_ = schedule_updates;
  skipped_updates_ = skipped_updates;
}

absl::StatusOr<Trainer::Members> Trainer::Collect(const Batch& batch, int64_t version,
                                                  StepReport* report) const {
  Members m;
  std::vector<uint64_t> groups;
  std::vector<double> rewards;
  int64_t truncated = 0;
  for (const BatchGroup& group : batch.groups) {
    report->group_ids.push_back(group.group_id);
    for (const Trajectory& t : group.trajectories) {
      PackInput input{t.token_ids, t.loss_mask, group.group_id};
      if (!HasVerdict(t)) {
        ++report->no_verdict;
        continue;
      }
      if (t.logprobs.size() != t.token_ids.size()) {
        return absl::InvalidArgumentError(absl::StrCat("trajectory ", Describe(t), " has ",
                                                       t.token_ids.size(), " tokens and ",
                                                       t.logprobs.size(), " logprobs"));
      }
      if (!m.trajectories.empty() && t.temperature != m.trajectories[0]->temperature) {
        return absl::InvalidArgumentError(absl::StrCat(
            "batch of step ", batch.step, " mixes temperatures ", m.trajectories[0]->temperature,
            " and ", t.temperature, " (trajectory ", Describe(t), ")"));
      }
      m.trajectories.push_back(&t);
      m.inputs.push_back(input);
      groups.push_back(group.group_id);
      rewards.push_back(t.reward);
      truncated += t.status == TrajectoryStatus::kTruncated;
      report->response_tokens.push_back(CountTargets(input));
      report->staleness.push_back(std::max<int64_t>(0, version - OldestVersion(t)));
    }
  }
  report->groups = static_cast<int64_t>(batch.groups.size());
  report->trajectories = static_cast<int64_t>(m.trajectories.size());
  if (m.trajectories.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("batch of step ", batch.step, " with ",
                                                   batch.groups.size(),
                                                   " groups has no trajectory with a verdict"));
  }
  // The sampler reports logprobs of temperature 1 for greedy samples.
  const double temperature = m.trajectories[0]->temperature;
  m.temperature = temperature > 0 ? temperature : 1;
  MeanAndDeviation(rewards, &report->reward_mean, &report->reward_std);
  MR_ASSIGN_OR_RETURN(m.advantages, GroupAdvantages(groups, rewards, 1, options_.advantage));
  LossDenominators denominators;
  denominators.trajectories = static_cast<double>(m.trajectories.size());
  denominators.max_tokens = static_cast<double>(options_.max_completion_tokens);
  for (int64_t tokens : report->response_tokens) report->trained_tokens += tokens;
  denominators.tokens = static_cast<double>(report->trained_tokens);
  for (int64_t tokens : report->response_tokens) {
    m.weights.push_back(TokenWeight(options_.loss, denominators, tokens));
  }
  const auto count = static_cast<double>(m.trajectories.size());
  report->response_tokens_mean = static_cast<double>(report->trained_tokens) / count;
  report->truncated_fraction = static_cast<double>(truncated) / count;
  return m;
}

absl::Status Trainer::FillReference(const std::vector<MicroBatch>& micros, const PassOptions& pass,
                                    std::vector<std::vector<float>>* logprobs) {
  logprobs->assign(micros.size(), {});
  if (options_.policy.kl_beta == 0) return absl::OkStatus();
  for (size_t i = 0; i < micros.size(); ++i) {
    MR_ASSIGN_OR_RETURN(TargetLogprobs result, ComputeLogprobs(*reference_, micros[i], pass));
    (*logprobs)[i] = std::move(result.logprobs);
  }
  return absl::OkStatus();
}

absl::Status Trainer::SelfCheck(const Members& members, const MicroBatch& micro,
                                const TargetLogprobs& logprobs, int64_t version,
                                StepReport* report) {
  const bool bf16 = model_->compute_type() == ComputeType::kBfloat16;
  const double tolerance = std::max(options_.self_check_tolerance, bf16 ? kBf16Tolerance : 0);
  double sum = 0;
  double worst = -1;
  size_t where = 0;
  int64_t compared = 0;
  for (size_t i = 0; i < micro.targets.size(); ++i) {
    const Trajectory& t = *members.trajectories[micro.trajectory[i]];
    if (VersionOf(t, micro.token[i]) != version) continue;
    double diff = std::fabs(t.logprobs[micro.token[i]] - logprobs.logprobs[i]);
    if (std::isnan(diff)) diff = std::numeric_limits<double>::infinity();
    sum += diff;
    ++compared;
    if (diff > worst) {
      worst = diff;
      where = i;
    }
  }
  if (compared == 0) return absl::OkStatus();
  report->self_checked = true;
  if (worst <= tolerance) return absl::OkStatus();
  const Trajectory& t = *members.trajectories[micro.trajectory[where]];
  return absl::FailedPreconditionError(absl::StrFormat(
      "self-check: sampler and learner disagree at version %d by %.3g (learner."
      "self_check_tolerance %.3g; mean %.3g over %d tokens). Worst: trajectory %s, token %d of %d "
      "(id %d): sampler %.6f, learner %.6f. Likely causes: the rollout server ran other weights "
      "than version %d, a wrong temperature (trajectory says %g), top-k or top-p that the learner "
      "does not know, a wrong loss mask or prompt, or different rope or dtype settings",
      version, worst, tolerance, sum / static_cast<double>(compared), compared, Describe(t),
      micro.token[where], t.token_ids.size(), micro.targets[where], t.logprobs[micro.token[where]],
      logprobs.logprobs[where], version, t.temperature));
}

absl::StatusOr<UpdateReport> Trainer::Update(const Members& members,
                                             const std::vector<MicroBatch>& micros,
                                             const std::vector<std::vector<float>>& reference,
                                             const PassOptions& pass, int64_t version,
                                             StepReport* report) {
  UpdateReport update;
  PolicyLossSums sums;
  std::vector<float> old;
  std::vector<double> advantages;
  std::vector<double> weights;
  for (size_t k = 0; k < micros.size(); ++k) {
    const MicroBatch& micro = micros[k];
    const size_t n = micro.targets.size();
    old.resize(n);
    advantages.resize(n);
    weights.resize(n);
    for (size_t i = 0; i < n; ++i) {
      const int32_t member = micro.trajectory[i];
      old[i] = members.trajectories[member]->logprobs[micro.token[i]];
      advantages[i] = members.advantages[member];
      weights[i] = members.weights[member];
    }
    auto loss = [&](const TargetLogprobs& result, absl::Span<float> gradient) -> absl::Status {
      if (self_check_due_ && options_.self_check_tolerance > 0) {
        MR_RETURN_IF_ERROR(SelfCheck(members, micro, result, version, report));
      }
      for (size_t i = 0; i < n; ++i) {
        const double diff = std::fabs(static_cast<double>(old[i]) - result.logprobs[i]);
        update.logprob_diff_mean += diff;
        update.logprob_diff_max = std::max(update.logprob_diff_max, diff);
        update.entropy += result.entropy[i];
      }
      return PolicyLoss(options_.policy, {result.logprobs, old, reference[k], advantages, weights},
                        gradient, &sums);
    };
    MR_RETURN_IF_ERROR(AccumulateGradient(*model_, micro, pass, loss));
  }
  if (report->self_checked) self_check_due_ = false;
  const auto tokens = static_cast<double>(std::max<int64_t>(sums.tokens, 1));
  update.loss = sums.loss;
  update.entropy /= tokens;
  update.logprob_diff_mean /= tokens;
  update.kl = sums.kl / tokens;
  update.clip_low = sums.clip_low / tokens;
  update.clip_high = sums.clip_high / tokens;
  update.ratio_mean = sums.ratio / tokens;
  update.ratio_max = sums.ratio_max;
  update.sampler_kl = sums.sampler_kl / tokens;
  MR_RETURN_IF_ERROR(Apply(sums.loss, &update));
  return update;
}

absl::Status Trainer::Apply(double loss, UpdateReport* update) {
  update->lr = options_.schedule.At(schedule_updates_++);
  if (std::isfinite(loss)) {
    MR_ASSIGN_OR_RETURN(AdamW::StepInfo info, optimizer_->Step(update->lr));
    update->grad_norm = info.grad_norm;
    update->skipped = !info.applied;
  } else {
    model_->ZeroGradients();
    update->grad_norm = std::numeric_limits<double>::quiet_NaN();
    update->skipped = true;
  }
  skipped_in_a_row_ = update->skipped ? skipped_in_a_row_ + 1 : 0;
  skipped_updates_ += update->skipped;
  if (skipped_in_a_row_ >= options_.max_skipped) {
    return absl::InternalError(absl::StrCat(
        skipped_in_a_row_, " updates in a row were skipped because loss (", loss,
        ") or gradient norm (", update->grad_norm,
        ") is not finite; the weights are those of the last good update. A lower learner.lr or "
        "max_grad_norm may help"));
  }
  return absl::OkStatus();
}

absl::StatusOr<StepReport> Trainer::Step(const Batch& batch, int64_t version) {
  StepReport report;
  MR_ASSIGN_OR_RETURN(Members members, Collect(batch, version, &report));
  MR_ASSIGN_OR_RETURN(std::vector<MicroBatch> micros,
                      PackTrajectories(members.inputs, options_.token_budget));
  report.micro_batches = static_cast<int64_t>(micros.size());
  for (const MicroBatch& micro : micros) {
    report.forward_tokens += static_cast<int64_t>(micro.batch.token_ids.size());
  }
  const PassOptions pass{members.temperature, options_.logit_chunk};
  std::vector<std::vector<float>> reference;
  MR_RETURN_IF_ERROR(FillReference(micros, pass, &reference));
  for (int64_t u = 0; u < options_.updates_per_batch; ++u) {
    MR_ASSIGN_OR_RETURN(UpdateReport update,
                        Update(members, micros, reference, pass, version, &report));
    report.updates.push_back(update);
  }
  return report;
}

}  // namespace millrace
