// One learner step: a batch of groups becomes one or more AdamW updates.
//
// The ratio compares the policy with the sampler's own logprobs. Denominators are fixed from the
// batch before packing, so results don't depend on the token budget. Not thread-safe.
#ifndef MILLRACE_LEARNER_TRAIN_STEP_H_
#define MILLRACE_LEARNER_TRAIN_STEP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "buffer/buffer_client.h"
#include "common/config.h"
#include "learner/advantage.h"
#include "learner/gradient_pass.h"
#include "learner/optimizer.h"
#include "learner/policy_loss.h"
#include "learner/schedule.h"
#include "model/transformer.h"

namespace millrace {

struct TrainerOptions {
  LossType loss = LossType::kDapo;
  PolicyLossOptions policy;
  AdvantageOptions advantage;
  int64_t max_completion_tokens = 0;  // M of dr_grpo
  int64_t updates_per_batch = 1;
  int64_t token_budget = 8192;
  int64_t logit_chunk = 1024;
  Schedule schedule;  // over optimizer updates
  AdamW::Options optimizer;
  double self_check_tolerance = 1e-4;  // 0 = off
  int64_t max_skipped = 3;             // non-finite updates in a row that end the run
};
// From the config's [learner], [rollout] and [run].
absl::StatusOr<TrainerOptions> MakeTrainerOptions(const RunConfig& config);

// One optimizer update.
struct UpdateReport {
  double loss = 0;
  double grad_norm = 0;  // before clipping
  double lr = 0;
  double entropy = 0;    // nats, mean over trained tokens
  double kl = 0;         // k3 to the reference, mean over tokens; 0 without a reference
  double clip_low = 0;   // fraction of tokens
  double clip_high = 0;  // fraction of tokens
  double ratio_mean = 0;
  double ratio_max = 0;
  double sampler_kl = 0;         // k3 estimate of KL(sampler, policy), mean over tokens
  double logprob_diff_mean = 0;  // |sampler - policy| over tokens
  double logprob_diff_max = 0;
  bool skipped = false;  // loss or gradient was not finite; nothing was changed
};

struct StepReport {
  std::vector<UpdateReport> updates;  // updates_per_batch of them
  double reward_mean = 0;             // over trajectories with a verdict
  double reward_std = 0;
  int64_t groups = 0;
  int64_t trajectories = 0;  // trained on
  int64_t no_verdict = 0;    // FAILED or ABORTED members, left out
  std::vector<uint64_t> group_ids;
  double response_tokens_mean = 0;
  double truncated_fraction = 0;
  std::vector<int64_t> staleness;  // of each trained trajectory, versions
  int64_t trained_tokens = 0;      // targets, once an update
  int64_t forward_tokens = 0;      // packed tokens, once an update
  int64_t micro_batches = 0;
  std::vector<int64_t> response_tokens;  // of each trained trajectory
  bool self_checked = false;             // this step compared sampler and learner
};

class Trainer {
 public:
  // `model` must outlive it; `reference` is needed when kl_beta is not 0.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(Transformer* model,
                                                         std::unique_ptr<Transformer> reference,
                                                         TrainerOptions options);

  // Trains on `batch` with weights of `version`. INVALID_ARGUMENT names a batch that can't be
  // trained on; FAILED_PRECONDITION a failed self-check (trajectory, token, both logprobs, likely
  // causes); INTERNAL too many non-finite updates in a row.
  absl::StatusOr<StepReport> Step(const Batch& batch, int64_t version);

  AdamW& optimizer() { return *optimizer_; }
  int64_t skipped_updates() const { return skipped_updates_; }
  // Updates asked for so far, skipped ones too: the schedule's clock.
  int64_t schedule_updates() const { return schedule_updates_; }
  void Restore(int64_t schedule_updates, int64_t skipped_updates);

 private:
  struct Members;
  Trainer(Transformer* model, std::unique_ptr<Transformer> reference, TrainerOptions options);
  absl::StatusOr<Members> Collect(const Batch& batch, int64_t version, StepReport* report) const;
  absl::Status FillReference(const std::vector<MicroBatch>& micros, const PassOptions& pass,
                             std::vector<std::vector<float>>* logprobs);
  absl::Status SelfCheck(const Members& members, const MicroBatch& micro,
                         const TargetLogprobs& logprobs, int64_t version, StepReport* report);
  absl::StatusOr<UpdateReport> Update(const Members& members, const std::vector<MicroBatch>& micros,
                                      const std::vector<std::vector<float>>& reference,
                                      const PassOptions& pass, int64_t version, StepReport* report);
  absl::Status Apply(double loss, UpdateReport* update);

  Transformer* const model_;
  const std::unique_ptr<Transformer> reference_;
  const TrainerOptions options_;
  std::unique_ptr<AdamW> optimizer_;
  int64_t schedule_updates_ = 0;
  int64_t skipped_updates_ = 0;
  int64_t skipped_in_a_row_ = 0;
  bool self_check_due_ = true;
};

}  // namespace millrace

#endif  // MILLRACE_LEARNER_TRAIN_STEP_H_
