#include "learner/policy_loss.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "tests/learner/golden_json.h"

namespace millrace {
namespace {

using nlohmann::json;
using testing::Flatten;
using testing::ReadGolden;

// The inputs of one golden case, token by token (6 x 7).
struct Case {
  std::vector<float> logprobs, old, ref;
  std::vector<double> advantages, weights, entropy;
  std::vector<bool> used;
};

double TotalOf(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum;
}

std::vector<float> Floats(const std::vector<double>& values) {
  return std::vector<float>(values.begin(), values.end());
}

Case MakeCase(const json& golden, const json& c) {
  const json& in = golden["inputs"];
  auto uses = [&](const char* what) {
    for (const auto& u : c["uses"]) {
      if (u == what) return true;
    }
    return false;
  };
  const bool cold = c["config"].contains("temperature");
  Case out;
  out.logprobs =
      Floats(Flatten(golden[cold ? "per_token_logps_temperature_0_7" : "per_token_logps"]));
  out.entropy = Flatten(golden[cold ? "entropies_temperature_0_7" : "entropies"]);
  out.old = uses("old_per_token_logps") ? Floats(Flatten(in["old_per_token_logps"])) : out.logprobs;
  if (uses("ref_per_token_logps")) out.ref = Floats(Flatten(in["ref_per_token_logps"]));
  std::vector<double> mask = Flatten(in["completion_mask"]);
  const std::vector<double> tool = Flatten(in["tool_mask"]);
  const size_t width = mask.size() / 6;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (uses("tool_mask")) mask[i] *= tool[i];
    if (c["config"].value("_zero_row", -1) == static_cast<int>(i / width)) mask[i] = 0;
    const auto per_row = Flatten(in["advantages"]);
    out.advantages.push_back(uses("token_advantages") ? Flatten(in["token_advantages"])[i]
                                                      : per_row[i / width]);
  }
  LossDenominators d;
  d.trajectories = 6.0 * c["config"].value("current_gradient_accumulation_steps", 1);
  d.tokens = c["config"].value("_num_items", TotalOf(mask));
  d.max_tokens = 16;
  const LossType type = *ParseLossType(c["config"]["loss_type"]);
  for (size_t i = 0; i < mask.size(); ++i) {
    const size_t row = i / width * width;
    const double tokens =
        TotalOf(std::vector<double>(mask.begin() + row, mask.begin() + row + width));
    out.used.push_back(mask[i] != 0);
    out.weights.push_back(mask[i] * TokenWeight(type, d, static_cast<int64_t>(tokens)));
  }
  return out;
}

PolicyLossOptions OptionsOf(const json& config) {
  PolicyLossOptions options;
  options.clip_low = config.value("epsilon", 0.2);
  options.clip_high = config.value("epsilon_high", options.clip_low);
  options.kl_beta = config.value("beta", 0.0);
  options.kl_bias_correction = config.value("use_bias_correction_kl", false);
  return options;
}

// d loss / d logits by the chain rule: g (onehot - softmax) / temperature.
std::vector<double> LogitGradient(const json& golden, const json& c,
                                  const std::vector<float>& gradient) {
  const std::vector<double> logits = Flatten(golden["inputs"]["logits"]);
  const std::vector<double> ids = Flatten(golden["inputs"]["completion_ids"]);
  const double temperature = c["config"].value("temperature", 1.0);
  const size_t vocab = logits.size() / ids.size();
  std::vector<double> out(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    double sum = 0;
    for (size_t v = 0; v < vocab; ++v) sum += std::exp(logits[i * vocab + v] / temperature);
    for (size_t v = 0; v < vocab; ++v) {
      const double p = std::exp(logits[i * vocab + v] / temperature) / sum;
      out[i * vocab + v] = gradient[i] * ((v == ids[i] ? 1 : 0) - p) / temperature;
    }
  }
  return out;
}

TEST(PolicyLoss, EqualsTheGoldenLossGradientAndMetricsOfEveryCase) {
  const json golden = ReadGolden("losses/grpo.json");
  ASSERT_GE(golden["cases"].size(), 16u);
  for (const auto& c : golden["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const Case in = MakeCase(golden, c);
    std::vector<float> gradient(in.logprobs.size());
    PolicyLossSums sums;
    ASSERT_TRUE(PolicyLoss(OptionsOf(c["config"]),
                           {in.logprobs, in.old, in.ref, in.advantages, in.weights},
                           absl::MakeSpan(gradient), &sums)
                    .ok());
    const double expected = c["loss"];
    EXPECT_NEAR(sums.loss, expected, 1e-6 + 1e-6 * std::fabs(expected));
    const std::vector<double> logits = LogitGradient(golden, c, gradient);
    const std::vector<double> want = Flatten(c["grad_logits"]);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(logits[i], want[i], 1e-6) << i;
    const auto tokens = static_cast<double>(sums.tokens);
    const json& metrics = c["metrics"];
    EXPECT_NEAR(sums.clip_low / tokens, metrics["clip_ratio/low_mean"], 1e-6);
    EXPECT_NEAR(sums.clip_high / tokens, metrics["clip_ratio/high_mean"], 1e-6);
    EXPECT_NEAR(sums.kl / tokens, metrics.value("kl", 0.0), 1e-6);
    double entropy = 0;
    for (size_t i = 0; i < in.used.size(); ++i) entropy += in.used[i] ? in.entropy[i] : 0;
    EXPECT_NEAR(entropy / tokens, metrics["entropy"], 1e-6);
  }
}

TEST(PolicyLoss, SplitInTwoAddsUpToTheWhole) {
  const std::vector<float> logprobs = {-1, -2, -0.5, -3}, old = {-1.1f, -1.5f, -0.6f, -3};
  const std::vector<double> advantages = {1, -1, 0.5, 2}, weights = {0.1, 0.2, 0.3, 0.4};
  std::vector<float> whole(4), parts(4);
  PolicyLossSums one, two;
  auto run = [&](size_t begin, size_t n, std::vector<float>* out, PolicyLossSums* sums) {
    auto cut = [&](const auto& v) { return absl::MakeConstSpan(v).subspan(begin, n); };
    ASSERT_TRUE(PolicyLoss({}, {cut(logprobs), cut(old), {}, cut(advantages), cut(weights)},
                           absl::MakeSpan(*out).subspan(begin, n), sums)
                    .ok());
  };
  run(0, 4, &whole, &one);
  run(0, 1, &parts, &two);
  run(1, 3, &parts, &two);
  EXPECT_EQ(whole, parts);
  EXPECT_NEAR(one.loss, two.loss, 1e-15);
  EXPECT_EQ(one.tokens, two.tokens);
}

TEST(PolicyLoss, IsNotFiniteWhenALogprobIsNot) {
  const std::vector<float> logprobs = {std::numeric_limits<float>::quiet_NaN()}, old = {-1};
  const std::vector<double> one = {1};
  std::vector<float> gradient(1);
  PolicyLossSums sums;
  ASSERT_TRUE(PolicyLoss({}, {logprobs, old, {}, one, one}, absl::MakeSpan(gradient), &sums).ok());
  EXPECT_FALSE(std::isfinite(sums.loss));
}

TEST(PolicyLoss, RefusesAKlWeightWithoutAReference) {
  const std::vector<float> logprobs = {-1};
  const std::vector<double> one = {1};
  std::vector<float> gradient(1);
  PolicyLossSums sums;
  PolicyLossOptions options;
  options.kl_beta = 0.1;
  EXPECT_FALSE(
      PolicyLoss(options, {logprobs, logprobs, {}, one, one}, absl::MakeSpan(gradient), &sums)
          .ok());
}

}  // namespace
}  // namespace millrace
