#include "learner/train_step.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/kernels/bf16_products.h"
#include "tests/learner/tiny_run.h"
#include "tests/testing/fake_device.h"

namespace millrace {
namespace {

using testing::FillLogprobs;
using ::testing::HasSubstr;
using testing::OrThrow;
using testing::RandomBatch;
using testing::TinyModel;
using testing::TinyOptions;

std::unique_ptr<Trainer> MakeTrainer(Transformer* model, TrainerOptions options,
                                     std::unique_ptr<Transformer> reference = nullptr) {
  return OrThrow(Trainer::Create(model, std::move(reference), std::move(options)));
}

// After one update the gradient is the first moment / (1 - beta1).
at::Tensor GradientWith(const TrainerOptions& options, const Batch& batch) {
  auto model = TinyModel();
  auto trainer =
      MakeTrainer(model.get(), options, options.policy.kl_beta != 0 ? TinyModel(5) : nullptr);
  OrThrow(trainer->Step(batch, 0));
  return trainer->optimizer().first_moment() / (1 - options.optimizer.beta1);
}

TEST(TrainStep, GivesTheSameGradientForEveryTokenBudgetAndLoss) {
  for (LossType loss : {LossType::kDapo, LossType::kGrpo, LossType::kDrGrpo, LossType::kBnpo}) {
    SCOPED_TRACE(static_cast<int>(loss));
    TrainerOptions options = TinyOptions();
    options.loss = loss;
    options.policy.kl_beta = 0.1;
    options.optimizer.max_grad_norm = 0;
    Batch batch = RandomBatch(11);
    auto sampler = TinyModel();
    FillLogprobs(*sampler, &batch);
    std::vector<at::Tensor> gradients;
    for (int64_t budget : {1, 17, 40, 100000}) {
      options.token_budget = budget;
      gradients.push_back(GradientWith(options, batch));
    }
    EXPECT_GT(gradients[0].abs().max().item<double>(), 1e-3);
    for (const at::Tensor& gradient : gradients) {
      EXPECT_LT((gradient - gradients[0]).abs().max().item<double>(), 1e-6);
    }
  }
}

TEST(TrainStep, LeavesMembersWithoutAVerdictOutOfTheGradientAndCountsThem) {
  Batch with = RandomBatch(12);
  auto sampler = TinyModel();
  FillLogprobs(*sampler, &with);
  Batch without = with;
  Trajectory failed = with.groups[0].trajectories[0];
  failed.status = TrajectoryStatus::kFailed;
  failed.reward = 100;
  Trajectory aborted = failed;
  aborted.status = TrajectoryStatus::kAborted;
  with.groups[0].trajectories.push_back(failed);
  with.groups[1].trajectories.push_back(aborted);
  EXPECT_TRUE(at::equal(GradientWith(TinyOptions(), with), GradientWith(TinyOptions(), without)));
  auto model = TinyModel();
  const StepReport report = OrThrow(MakeTrainer(model.get(), TinyOptions())->Step(with, 0));
  EXPECT_EQ(report.no_verdict, 2);
  EXPECT_EQ(report.trajectories, 12);
  EXPECT_NEAR(report.reward_mean, 0.5, 1e-12);
}

TEST(TrainStep, RaisesWhatWasRewardedAndLowersWhatWasNot) {
  auto model = TinyModel();
  Batch batch = RandomBatch(13);
  FillLogprobs(*model, &batch);
  auto trainer = MakeTrainer(model.get(), TinyOptions());
  const StepReport report = OrThrow(trainer->Step(batch, 0));
  EXPECT_TRUE(report.self_checked);
  EXPECT_LT(report.updates[0].logprob_diff_max, 1e-4);
  Batch after = batch;
  FillLogprobs(*model, &after);
  double good = 0, bad = 0;
  for (size_t g = 0; g < batch.groups.size(); ++g) {
    for (size_t k = 0; k < batch.groups[g].trajectories.size(); ++k) {
      const Trajectory& before = batch.groups[g].trajectories[k];
      for (size_t i = 0; i < before.logprobs.size(); ++i) {
        (before.reward > 0 ? good : bad) +=
            after.groups[g].trajectories[k].logprobs[i] - before.logprobs[i];
      }
    }
  }
  EXPECT_GT(good, 0);
  EXPECT_LT(bad, 0);
}

TEST(TrainStep, FailsTheSelfCheckByNameWhenOneLogprobIsWrong) {
  auto model = TinyModel();
  Batch batch = RandomBatch(14);
  FillLogprobs(*model, &batch);
  batch.groups[1].trajectories[2].logprobs.back() -= 0.01f;
  const at::Tensor before = model->flat_parameters().clone();
  auto trainer = MakeTrainer(model.get(), TinyOptions());
  const auto report = trainer->Step(batch, 0);
  ASSERT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition);
  const std::string message(report.status().message());
  EXPECT_THAT(message, HasSubstr("group 2 index 2"));
  EXPECT_THAT(message, HasSubstr("sampler"));
  EXPECT_THAT(message, HasSubstr("temperature"));
  EXPECT_TRUE(at::equal(model->flat_parameters(), before));
}

TEST(TrainStep, SelfCheckOfBf16ProductsAllowsForRoundingAndNotForMore) {
  if (!HasBf16Products()) GTEST_SKIP() << "this CPU has no AVX512_BF16";
  auto model = TinyModel();
  Batch batch = RandomBatch(14);
  FillLogprobs(*model, &batch);  // in fp32
  model->set_compute_type(ComputeType::kBfloat16);
  const StepReport report = OrThrow(MakeTrainer(model.get(), TinyOptions())->Step(batch, 0));
  EXPECT_TRUE(report.self_checked);
  EXPECT_GT(report.updates[0].logprob_diff_max, 1e-5);
  FillLogprobs(*model, &batch);
  batch.groups[1].trajectories[2].logprobs.back() -= 1.0f;
  const auto failed = MakeTrainer(model.get(), TinyOptions())->Step(batch, 0);
  EXPECT_THAT(std::string(failed.status().message()), HasSubstr("self_check_tolerance 0.5"));
}

TEST(TrainStep, ComparesOnlyTokensOfTheCurrentVersionAndOnlyOnce) {
  auto model = TinyModel();
  Batch stale = RandomBatch(15);
  FillLogprobs(*model, &stale);
  for (BatchGroup& group : stale.groups) {
    for (Trajectory& t : group.trajectories) {
      for (float& logprob : t.logprobs) logprob *= 1.1f;
    }
  }
  TrainerOptions options = TinyOptions();
  options.schedule.lr = 0;
  auto trainer = MakeTrainer(model.get(), options);
  // Tokens of version 0, weights of version 1: nothing to compare, so the check stays due.
  const StepReport first = OrThrow(trainer->Step(stale, 1));
  EXPECT_FALSE(first.self_checked);
  EXPECT_EQ(first.staleness.front(), 1);
  EXPECT_FALSE(trainer->Step(stale, 0).ok());
  Batch fresh = RandomBatch(16);
  FillLogprobs(*model, &fresh);
  EXPECT_TRUE(OrThrow(trainer->Step(fresh, 0)).self_checked);
  EXPECT_FALSE(OrThrow(trainer->Step(stale, 0)).self_checked);
}

TEST(TrainStep, TakesTheTemperatureFromTheTrajectories) {
  auto model = TinyModel();
  Batch batch = RandomBatch(17);
  FillLogprobs(*model, &batch, 0.7);
  EXPECT_TRUE(OrThrow(MakeTrainer(model.get(), TinyOptions())->Step(batch, 0)).self_checked);
  batch.groups[0].trajectories[1].temperature = 1;
  const auto mixed = MakeTrainer(model.get(), TinyOptions())->Step(batch, 0);
  EXPECT_THAT(std::string(mixed.status().message()), HasSubstr("mixes temperatures"));
}

TEST(TrainStep, SkipsNonFiniteUpdatesAndGivesUpAfterThreeInARow) {
  auto model = TinyModel();
  Batch good = RandomBatch(18);
  FillLogprobs(*model, &good);
  Batch bad = good;
  bad.groups[0].trajectories[0].logprobs.back() = std::numeric_limits<float>::quiet_NaN();
  TrainerOptions options = TinyOptions();
  options.self_check_tolerance = 0;
  auto trainer = MakeTrainer(model.get(), options);
  const at::Tensor before = model->flat_parameters().clone();
  EXPECT_TRUE(OrThrow(trainer->Step(bad, 0)).updates[0].skipped);
  EXPECT_TRUE(OrThrow(trainer->Step(bad, 0)).updates[0].skipped);
  EXPECT_TRUE(at::equal(model->flat_parameters(), before));
  EXPECT_FALSE(OrThrow(trainer->Step(good, 0)).updates[0].skipped);
  EXPECT_FALSE(at::equal(model->flat_parameters(), before));
  OrThrow(trainer->Step(bad, 0));
  OrThrow(trainer->Step(bad, 0));
  const auto third = trainer->Step(bad, 0);
  EXPECT_THAT(std::string(third.status().message()), HasSubstr("3 updates in a row"));
  EXPECT_EQ(trainer->skipped_updates(), 5);
}

TEST(TrainStep, MakesSeveralUpdatesOfOneBatchAndClipsTheirRatios) {
  auto model = TinyModel();
  Batch batch = RandomBatch(19);
  FillLogprobs(*model, &batch);
  TrainerOptions options = TinyOptions();
  options.updates_per_batch = 4;
  options.schedule.lr = 1e-2;
  const StepReport report = OrThrow(MakeTrainer(model.get(), options)->Step(batch, 0));
  ASSERT_EQ(report.updates.size(), 4u);
  EXPECT_EQ(report.updates[0].clip_low + report.updates[0].clip_high, 0);
  EXPECT_NEAR(report.updates[0].ratio_mean, 1, 1e-4);
  EXPECT_GT(report.updates[3].clip_low + report.updates[3].clip_high, 0);
}

TEST(TrainStep, TheOptimizerHasAThreadACoreUnlessToldOtherwise) {
  RunConfig config;
  config.learner.threads = 0;
  EXPECT_EQ(OrThrow(MakeTrainerOptions(config)).optimizer.threads,
            static_cast<int>(std::thread::hardware_concurrency()));
  config.learner.threads = 3;
  EXPECT_EQ(OrThrow(MakeTrainerOptions(config)).optimizer.threads, 3);
}

TEST(TrainStep, NamesABatchWithoutAVerdict) {
  auto model = TinyModel();
  Batch batch = RandomBatch(20, 1, 1);
  batch.step = 9;
  batch.groups[0].trajectories[0].status = TrajectoryStatus::kFailed;
  const auto report = MakeTrainer(model.get(), TinyOptions())->Step(batch, 0);
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("step 9"));
}

TEST(TrainStep, WorksOnAnotherDeviceWithAFixedNumberOfTransfers) {
  const at::Device device = testing::FakeDevice();
  auto host = TinyModel();
  auto model = TinyModel(3, device);
  ASSERT_TRUE(at::equal(host->flat_parameters(), model->flat_parameters().cpu()));
  Batch batch = RandomBatch(21);
  FillLogprobs(*host, &batch);
  OrThrow(MakeTrainer(host.get(), TinyOptions())->Step(batch, 0));
  auto trainer = MakeTrainer(model.get(), TinyOptions());
  testing::ResetFakeDeviceCounts();
  const StepReport report = OrThrow(trainer->Step(batch, 0));
  const testing::FakeDeviceCounts counts = testing::ReadFakeDeviceCounts();
  EXPECT_EQ(report.micro_batches, 1);
  // Logprobs come back once a micro-batch; the norm is read once an update.
  EXPECT_LE(counts.to_host + counts.synchronisations, 3);
  EXPECT_LT((model->flat_parameters().cpu() - host->flat_parameters()).abs().max().item<double>(),
            1e-4);
}

}  // namespace
}  // namespace millrace
