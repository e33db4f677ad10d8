// Whole training runs against recorded ones (tests/golden/e2e).
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <iostream>

#include "gtest/gtest.h"
#include "learner/sft_trainer.h"
#include "learner/train_step.h"
#include "model/safetensors.h"
#include "tests/learner/golden_json.h"

namespace millrace {
namespace {

using nlohmann::json;
using testing::ReadGolden;

constexpr double kLossTolerance = 1e-4;
constexpr double kGradNormTolerance = 1e-3;  // relative
constexpr double kLogitTolerance = 5e-3;

// Threads that wait for each other while others use the cores make these tests a hundred times
// slower.
const bool kOneThread = (at::set_num_threads(1), true);

std::string ModelDir() { return std::string(MILLRACE_GOLDEN_DIR) + "/models/qwen3_tied"; }

std::unique_ptr<Transformer> LoadModel() {
  auto model = Transformer::Load(ModelDir(), at::kCPU);
  if (!model.ok()) throw std::runtime_error(model.status().ToString());
  return *std::move(model);
}

at::Tensor GoldenTensor(const std::string& name, at::ScalarType type) {
  auto file = SafetensorsReader::Open(std::string(MILLRACE_GOLDEN_DIR) + "/e2e/after.safetensors");
  if (!file.ok()) throw std::runtime_error(file.status().ToString());
  const TensorView view = *file->Get(name);
  return at::from_blob(const_cast<std::byte*>(view.bytes.data()), view.shape, type).clone();
}

// Largest difference of the logits on the golden batch (right-padded; padding is not compared).
double AfterLogitsDiff(Transformer& model, const std::string& name) {
  c10::NoGradGuard no_grad;
  const at::Tensor ids = GoldenTensor("eval.input_ids", at::kLong);
  const at::Tensor mask = GoldenTensor("eval.attention_mask", at::kLong);
  const at::Tensor want = GoldenTensor(name + ".after_logits", at::kFloat);
  double worst = 0;
  for (int64_t row = 0; row < ids.size(0); ++row) {
    PackedBatch batch;
    const int64_t length = mask[row].sum().item<int64_t>();
    for (int64_t t = 0; t < length; ++t) {
      batch.token_ids.push_back(ids[row][t].item<int32_t>());
      batch.positions.push_back(static_cast<int32_t>(t));
    }
    batch.segments.push_back({0, length, -1});
    const at::Tensor logits = model.Forward(batch)->matmul(model.lm_head().t());
    worst = std::max(worst, (logits - want[row].narrow(0, 0, length)).abs().max().item<double>());
  }
  return worst;
}

// Groups `prompts` of the canned rollouts; logprobs are the model's own at `temperature`.
Batch MakeBatch(Transformer& model, const json& golden, const json& prompts, double temperature) {
  Batch batch;
  std::vector<PackInput> inputs;
  for (const int prompt : prompts.get<std::vector<int>>()) {
    BatchGroup group;
    group.group_id = static_cast<uint64_t>(prompt) + 100;
    for (int c = 0; c < 4; ++c) {
      const json& rollout = golden["rollouts"][4 * prompt + c];
      Trajectory t;
      t.key.group_id = group.group_id;
      t.key.index = static_cast<uint32_t>(c);
      t.token_ids = rollout["prompt_ids"].get<std::vector<int32_t>>();
      t.loss_mask.assign(t.token_ids.size(), 0);
      const auto completion = rollout["completion_ids"].get<std::vector<int32_t>>();
      t.token_ids.insert(t.token_ids.end(), completion.begin(), completion.end());
      t.loss_mask.resize(t.token_ids.size(), 1);
      t.logprobs.assign(t.token_ids.size(), 0);
      const auto begin = static_cast<uint32_t>(t.token_ids.size() - completion.size());
      t.versions.push_back({0, begin, static_cast<uint32_t>(t.token_ids.size())});
      t.reward = rollout["reward"];
      t.temperature = static_cast<float>(temperature);
      group.trajectories.push_back(t);
    }
    batch.groups.push_back(group);
  }
  std::vector<Trajectory*> all;
  for (BatchGroup& group : batch.groups) {
    for (Trajectory& t : group.trajectories) {
      all.push_back(&t);
      inputs.push_back({t.token_ids, t.loss_mask, group.group_id});
    }
  }
  // Packed otherwise than the trainer does, so that the self-check compares two computations.
  const auto micros = *PackTrajectories(inputs, 16);
  for (const MicroBatch& micro : micros) {
    const TargetLogprobs logprobs = *ComputeLogprobs(model, micro, {temperature, 7});
    for (size_t i = 0; i < micro.rows.size(); ++i) {
      all[micro.trajectory[i]]->logprobs[micro.token[i]] = logprobs.logprobs[i];
    }
  }
  return batch;
}

TrainerOptions OptionsOf(const json& c, int64_t token_budget) {
  const json& config = c["config"];
  TrainerOptions o;
  o.loss = *ParseLossType(config["loss_type"]);
  o.policy.clip_low = config["epsilon"];
  o.policy.clip_high = config.value("epsilon_high", o.policy.clip_low);
  o.policy.kl_beta = config["beta"];
  o.policy.kl_bias_correction = config.value("use_bias_correction_kl", false);
  o.advantage.scale = *ParseAdvantageScale(config.value("scale_rewards", "group"));
  o.max_completion_tokens = config["max_completion_length"];
  o.token_budget = token_budget;
  o.logit_chunk = 13;
  o.schedule.lr = config["learning_rate"];
  o.optimizer.weight_decay = config["weight_decay"];
  o.optimizer.max_grad_norm = config["max_grad_norm"];
  return o;
}

void CheckUpdate(const UpdateReport& update, const json& step) {
  EXPECT_NEAR(update.loss, step["loss"], kLossTolerance);
  const double norm = step["grad_norm"];
  EXPECT_NEAR(update.grad_norm, norm, kGradNormTolerance * norm);
  EXPECT_NEAR(update.entropy, step["entropy"], 5e-2);
  EXPECT_NEAR(update.kl, step.value("kl", 0.0), 1e-3 * (1 + step.value("kl", 0.0)));
}

class GrpoRuns : public ::testing::TestWithParam<int64_t> {};

TEST_P(GrpoRuns, FollowTheRecordedOnesStepByStep) {
  const json golden = ReadGolden("e2e/e2e.json");
  int runs = 0;
  for (const auto& c : golden["cases"]) {
    const std::string name = c["name"];
    if (name.rfind("grpo", 0) != 0) continue;
    SCOPED_TRACE(name);
    std::unique_ptr<Transformer> model = LoadModel();
    const double temperature = c["config"].value("temperature", 1.0);
    TrainerOptions options = OptionsOf(c, GetParam());
    std::unique_ptr<Transformer> reference =
        options.policy.kl_beta != 0 ? *model->Clone() : nullptr;
    // The recorded rate falls linearly to 0 over 4 updates: one trainer for each update, with the
    // moments handed on.
    int64_t updates = 0;
    at::Tensor first, second;
    Batch batch;
    for (size_t step = 0; step < 4; ++step) {
      SCOPED_TRACE(step);
      if (step % 2 == 0) {
        batch = MakeBatch(*model, golden, c["prompt_order"][step / 2], temperature);
      }
      options.schedule.lr = c["steps"][step]["learning_rate"];
      options.self_check_tolerance = step % 2 == 0 ? 1e-4 : 0;
      auto trainer = Trainer::Create(model.get(),
                                     reference != nullptr ? *reference->Clone() : nullptr, options);
      ASSERT_TRUE(trainer.ok()) << trainer.status();
      if (updates > 0) {
        ASSERT_TRUE((*trainer)->optimizer().Restore(updates, first, second).ok());
      }
      auto report = (*trainer)->Step(batch, 0);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->self_checked, step % 2 == 0);
      CheckUpdate(report->updates[0], c["steps"][step]);
      updates = (*trainer)->optimizer().updates();
      first = (*trainer)->optimizer().first_moment();
      second = (*trainer)->optimizer().second_moment();
    }
    EXPECT_LT(AfterLogitsDiff(*model, name), kLogitTolerance);
    ++runs;
  }
  EXPECT_EQ(runs, 5);
}

INSTANTIATE_TEST_SUITE_P(ForEveryTokenBudget, GrpoRuns, ::testing::Values(4096, 40, 1));

TEST(SftRuns, FollowTheRecordedOnesStepByStep) {
  const json golden = ReadGolden("e2e/e2e.json");
  int runs = 0;
  for (const auto& c : golden["cases"]) {
    const std::string name = c["name"];
    if (name.rfind("sft", 0) != 0) continue;
    SCOPED_TRACE(name);
    std::unique_ptr<Transformer> model = LoadModel();
    SftTrainer::Options options;
    options.loss = name == "sft_dft" ? SftLoss::kDft : SftLoss::kNll;
    options.lr = c["config"]["lr"];
    options.token_budget = 48;
    options.logit_chunk = 10;
    options.optimizer.weight_decay = c["config"]["weight_decay"];
    options.optimizer.max_grad_norm = c["config"]["max_grad_norm"];
    auto trainer = SftTrainer::Create(model.get(), options);
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    std::vector<SftExample> examples;
    for (const auto& example : c["examples"]) {
      examples.push_back({example["input_ids"].get<std::vector<int32_t>>(),
                          example["completion_mask"].get<std::vector<uint8_t>>()});
    }
    for (const auto& step : c["steps"]) {
      auto report = (*trainer)->Step(examples);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_NEAR(report->loss, step["loss"], kLossTolerance);
      EXPECT_NEAR(report->grad_norm, step["grad_norm"],
                  kGradNormTolerance * step["grad_norm"].get<double>());
    }
    EXPECT_LT(AfterLogitsDiff(*model, name), kLogitTolerance);
    ++runs;
  }
  EXPECT_EQ(runs, 2);
}

}  // namespace
}  // namespace millrace
