#include "learner/optimizer.h"

#include <ATen/ATen.h>

#include <limits>

#include "gtest/gtest.h"
#include "learner/schedule.h"
#include "model/safetensors.h"
#include "tests/learner/golden_json.h"

namespace millrace {
namespace {

using testing::ReadGolden;

at::Tensor Floats(const SafetensorsReader& file, const std::string& name) {
  auto view = file.Get(name);
  if (!view.ok()) throw std::runtime_error(view.status().ToString());
  at::Tensor out = at::empty(at::IntArrayRef(view->shape), at::kFloat);
  auto status = ConvertToFloat32(
      *view, absl::MakeSpan(out.mutable_data_ptr<float>(), static_cast<size_t>(out.numel())));
  if (!status.ok()) throw std::runtime_error(status.ToString());
  return out.flatten();
}

double MaxDiff(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST(AdamW, FollowsTheGoldenRunsWithDecayOnWeightsOnlyAndClipping) {
  const nlohmann::json golden = ReadGolden("optim/optim.json");
  auto file =
      SafetensorsReader::Open(std::string(MILLRACE_GOLDEN_DIR) + "/optim/adamw.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  for (const auto& c : golden["adamw"]) {
    const std::string name = c["name"];
    SCOPED_TRACE(name);
    at::Tensor p = at::cat({Floats(*file, name + ".w.init"), Floats(*file, name + ".b.init")});
    at::Tensor g = at::zeros_like(p);
    AdamW::Options options;
    options.beta1 = c["betas"][0];
    options.beta2 = c["betas"][1];
    options.eps = c["eps"];
    options.weight_decay = c["weight_decay"];
    options.max_grad_norm = c["clip_norm"].is_null() ? 0 : c["clip_norm"].get<double>();
    auto adam = AdamW::Create(p, g, {{0, 20, true}, {20, 25, false}}, options);
    ASSERT_TRUE(adam.ok()) << adam.status();
    for (int step = 0; step < 10; ++step) {
      const std::string n = std::to_string(step);
      g.copy_(
          at::cat({Floats(*file, name + ".w.grad." + n), Floats(*file, name + ".b.grad." + n)}));
      auto info = (*adam)->Step(c["lr"]);
      ASSERT_TRUE(info.ok() && info->applied);
      if (options.max_grad_norm > 0) {
        EXPECT_NEAR(info->grad_norm, c["total_norms"][step], 1e-6 * info->grad_norm);
      }
      const at::Tensor want =
          at::cat({Floats(*file, name + ".w.after." + n), Floats(*file, name + ".b.after." + n)});
      EXPECT_LT(MaxDiff(p, want), 1e-6) << step;
      EXPECT_EQ(g.abs().max().item<double>(), 0);
    }
    EXPECT_LT(MaxDiff((*adam)->first_moment().narrow(0, 0, 20), Floats(*file, name + ".w.exp_avg")),
              1e-6);
    EXPECT_LT(
        MaxDiff((*adam)->second_moment().narrow(0, 0, 20), Floats(*file, name + ".w.exp_avg_sq")),
        1e-6);
  }
}

TEST(AdamW, GivesTheSameBitsForAnyNumberOfThreads) {
  const int64_t size = (1 << 20) + 77;
  at::Tensor start = at::randn({size}), gradient = at::randn({size});
  std::vector<at::Tensor> results;
  for (int threads : {1, 2, 5}) {
    at::Tensor p = start.clone(), g = gradient.clone();
    AdamW::Options options;
    options.threads = threads;
    options.weight_decay = 0.1;
    options.max_grad_norm = 0.5;
    auto adam = AdamW::Create(p, g, {{0, 100, false}, {100, size, true}}, options);
    ASSERT_TRUE(adam.ok());
    ASSERT_TRUE((*adam)->Step(1e-2).ok());
    results.push_back(p);
  }
  EXPECT_TRUE(at::equal(results[0], results[1]));
  EXPECT_TRUE(at::equal(results[0], results[2]));
}

TEST(AdamW, LeavesEverythingAsItWasWhenTheGradientIsNotFinite) {
  at::Tensor p = at::ones({4}), g = at::ones({4});
  g[2] = std::numeric_limits<float>::infinity();
  auto adam = AdamW::Create(p, g, {{0, 4, true}}, {});
  ASSERT_TRUE(adam.ok());
  auto info = (*adam)->Step(1);
  ASSERT_TRUE(info.ok());
  EXPECT_FALSE(info->applied);
  EXPECT_EQ((*adam)->updates(), 0);
  EXPECT_TRUE(at::equal(p, at::ones({4})));
  EXPECT_TRUE(at::equal(g, at::zeros({4})));
}

TEST(AdamW, RefusesRangesThatDoNotCoverTheBuffer) {
  at::Tensor p = at::ones({4}), g = at::ones({4});
  EXPECT_FALSE(AdamW::Create(p, g, {{0, 3, true}}, {}).ok());
  EXPECT_FALSE(AdamW::Create(p, g, {{1, 4, true}}, {}).ok());
}

TEST(Schedule, EqualsTheGoldenRates) {
  const nlohmann::json golden = ReadGolden("optim/optim.json");
  int cases = 0;
  for (const auto& c : golden["schedules"]) {
    SCOPED_TRACE(c["kind"].get<std::string>());
    Schedule schedule;
    const std::string kind = c["kind"];
    schedule.kind = kind.rfind("cosine", 0) == 0 ? ScheduleKind::kCosine : ScheduleKind::kConstant;
    schedule.lr = c["base_lr"];
    schedule.warmup = c["warmup"];
    schedule.total = c["total"];
    schedule.min_ratio = c["extra"].value("min_lr_rate", 0.0);
    const auto& rates = c["lr_used_at_step"];
    // A cosine schedule is asked for its run's steps only.
    const size_t count = schedule.kind == ScheduleKind::kCosine ? rates.size() - 2 : rates.size();
    for (size_t i = 0; i < count; ++i) {
      const double want = rates[i];
      EXPECT_NEAR(schedule.At(static_cast<int64_t>(i)), want, 1e-9 * want) << i;
    }
    ++cases;
  }
  EXPECT_GE(cases, 5);
}

}  // namespace
}  // namespace millrace
