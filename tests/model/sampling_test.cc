#include "model/sampling.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/testing/fake_device.h"

namespace millrace {
namespace {

using nlohmann::json;

at::Tensor RandomLogits(int64_t rows, int64_t vocab, uint64_t seed, double spread) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::empty({rows, vocab}, at::kFloat).normal_(0, spread, generator);
}

json Golden() {
  std::ifstream file(std::string(MILLRACE_GOLDEN_DIR) + "/sampling/sampling.json");
  return json::parse(file);
}

SamplingParams ParamsOf(const json& config) {
  SamplingParams params;
  params.temperature = config.value("temperature", 1.0f);
  params.top_k = config.value("top_k", 0);
  params.top_p = config.value("top_p", 1.0f);
  return params;
}

// Draws `count` times from every golden row and checks what comes out against its probabilities.
void CheckAgainstGolden(at::Device device, int count) {
  const json golden = Golden();
  const auto rows = golden["inputs"]["logits"].get<std::vector<std::vector<float>>>();
  int cases = 0;
  for (const json& c : golden["cases"]) {
    const json& config = c["config"];
    if (config.contains("min_p") || config.contains("repetition_penalty")) continue;
    SCOPED_TRACE(config.dump());
    ++cases;
    const auto probs = c["probs"].get<std::vector<std::vector<double>>>();
    for (size_t r = 0; r < rows.size(); ++r) {
      at::Tensor logits = at::tensor(rows[r]).unsqueeze(0).repeat({count, 1}).to(device);
      std::vector<SampleRow> draws(count);
      for (int i = 0; i < count; ++i) draws[i] = {ParamsOf(config), SampleStream(11, r), 7u * i};
      std::map<int32_t, int> seen;
      for (const SampledToken& token : Sample(logits, draws)) {
        ++seen[token.id];
        ASSERT_NEAR(std::exp(token.logprob), probs[r][token.id], 1e-6) << "token " << token.id;
      }
      // Pearson's statistic; a right sampler exceeds df + 5 * sqrt(2 df) about once in a million.
      double chi = 0;
      int kinds = 0;
      for (size_t v = 0; v < probs[r].size(); ++v) {
        const double expected = probs[r][v] * count;
        if (probs[r][v] == 0) {
          ASSERT_EQ(seen.count(v), 0u) << "token " << v;
        }
        if (expected < 5) continue;
        ++kinds;
        chi += (seen[v] - expected) * (seen[v] - expected) / expected;
      }
      EXPECT_LT(chi, kinds + 5 * std::sqrt(2.0 * kinds)) << "row " << r;
    }
  }
  EXPECT_EQ(cases, 8);
}

TEST(SamplingTest, DrawsFromTheGoldenProbabilitiesAndReportsThem) {
  CheckAgainstGolden(at::kCPU, 4000);
}

TEST(SamplingTest, OtherDevicesDrawFromTheGoldenProbabilitiesToo) {
  CheckAgainstGolden(testing::FakeDevice(), 1000);
}

TEST(SamplingTest, GreedyTakesTheLargestLogitAndReportsItsLogprobAtTemperatureOne) {
  for (const at::Device device : {at::Device(at::kCPU), at::Device(testing::FakeDevice())}) {
    at::Tensor host = RandomLogits(5, 3001, 3, 2.0);
    host[4][0] = 50;
    host[3][3000] = 50;
    const at::Tensor expected_id = host.argmax(-1);
    const at::Tensor expected = at::log_softmax(host.to(at::kDouble), -1);
    std::vector<SampleRow> rows(5);
    for (SampleRow& row : rows) row.params.temperature = 0;
    at::Tensor logits = host.to(device);
    const auto tokens = Sample(logits, rows);
    for (int r = 0; r < 5; ++r) {
      EXPECT_EQ(tokens[r].id, expected_id[r].item<int64_t>());
      EXPECT_NEAR(tokens[r].logprob, expected[r][tokens[r].id].item<double>(), 1e-5);
    }
  }
}

TEST(SamplingTest, LogprobIsThatOfTheDistributionDrawnFrom) {
  at::Tensor logits = RandomLogits(64, 49152, 4, 3.0);
  const at::Tensor expected = at::log_softmax(logits.to(at::kDouble) / 0.8, -1);
  std::vector<SampleRow> rows(64);
  for (size_t r = 0; r < rows.size(); ++r) rows[r] = {{0.8f, 0, 1.0f}, SampleStream(1, r), r};
  const auto tokens = Sample(logits, rows);
  for (int r = 0; r < 64; ++r) {
    EXPECT_NEAR(tokens[r].logprob, expected[r][tokens[r].id].item<double>(), 1e-5);
  }
}

// The filters as sorting the whole row defines them.
std::vector<int32_t> KeptBySorting(const at::Tensor& row, const SamplingParams& params) {
  auto [sorted, order] = row.to(at::kDouble).sort(-1, true);
  const at::Tensor p = at::softmax(
      (sorted / params.temperature).narrow(0, 0, params.top_k > 0 ? params.top_k : row.size(0)),
      -1);
  std::vector<int32_t> kept;
  double before = 0;
  for (int64_t i = 0; i < p.size(0) && (i == 0 || before < params.top_p); ++i) {
    kept.push_back(static_cast<int32_t>(order[i].item<int64_t>()));
    before += p[i].item<double>();
  }
  std::sort(kept.begin(), kept.end());
  return kept;
}

TEST(SamplingTest, PartialSelectionKeepsWhatAFullSortWouldKeep) {
  const at::Tensor logits = RandomLogits(1, 2000, 5, 2.5);
  for (const SamplingParams& params :
       {SamplingParams{1.0f, 40, 1.0f}, SamplingParams{0.5f, 3, 1.0f},
        SamplingParams{1.0f, 0, 0.3f}, SamplingParams{2.0f, 100, 0.7f},
        SamplingParams{1.0f, 1999, 0.05f}}) {
    const std::vector<int32_t> kept = KeptBySorting(logits[0], params);
    std::map<int32_t, int> seen;
    at::Tensor many = logits.repeat({20000, 1});
    std::vector<SampleRow> rows(20000);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = {params, 9, i};
    for (const SampledToken& token : Sample(many, rows)) {
      ++seen[token.id];
      ASSERT_TRUE(std::binary_search(kept.begin(), kept.end(), token.id))
          << "top_k " << params.top_k << " top_p " << params.top_p << " token " << token.id;
    }
    // 20000 draws find nearly all tokens of sets this small.
    if (kept.size() < 50) {
      EXPECT_GE(seen.size(), kept.size() * 9 / 10) << kept.size();
    }
  }
}

TEST(SamplingTest, ADrawDoesNotDependOnTheBatchOrOnThreads) {
  at::Tensor logits = RandomLogits(16, 5000, 6, 1.0);
  std::vector<SampleRow> rows(16);
  for (size_t r = 0; r < rows.size(); ++r) {
    rows[r] = {{r % 2 ? 0.7f : 1.0f, r % 3 ? 0 : 50, r % 5 ? 1.0f : 0.9f}, SampleStream(2, r), r};
  }
  ComputePool pool(3);
  const auto together = Sample(logits, rows, &pool);
  for (int r = 15; r >= 0; --r) {
    at::Tensor alone = logits.narrow(0, r, 1).clone();
    const auto token = Sample(alone, {&rows[r], 1});
    EXPECT_EQ(token[0].id, together[r].id);
    EXPECT_EQ(token[0].logprob, together[r].logprob);
  }
}

TEST(SamplingTest, ForbiddenTokensAreNeverDrawn) {
  at::Tensor logits = at::full({1, 2100}, -INFINITY);
  logits[0][2050] = 1;
  logits[0][7] = 1;
  std::map<int32_t, int> seen;
  for (uint64_t i = 0; i < 200; ++i) {
    const SampleRow row = {{}, 5, i};
    const SampledToken token = Sample(logits, {&row, 1})[0];
    ++seen[token.id];
    EXPECT_NEAR(token.logprob, std::log(0.5), 1e-6);
  }
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_GT(seen[7], 60);
  EXPECT_GT(seen[2050], 60);
}

TEST(SamplingTest, BrokenLogitsGiveAValidIdAndALogprobThatIsNotFinite) {
  at::Tensor logits = at::full({1, 2100}, NAN);
  const SampleRow row;
  const SampledToken token = Sample(logits, {&row, 1})[0];
  EXPECT_GE(token.id, 0);
  EXPECT_LT(token.id, 2100);
  EXPECT_FALSE(std::isfinite(token.logprob));
}

TEST(SamplingTest, UniformsAreAPureFunctionSpreadOverTheUnitInterval) {
  double sum = 0, squares = 0;
  const int n = 100000;
  for (int i = 0; i < n; ++i) {
    const double u = UniformAt(SampleStream(i / 100, i % 100), i % 7);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    squares += u * u;
  }
  EXPECT_NEAR(sum / n, 0.5, 0.005);
  EXPECT_NEAR(squares / n, 1.0 / 3, 0.005);
  EXPECT_EQ(UniformAt(1, 2), UniformAt(1, 2));
  EXPECT_NE(UniformAt(1, 2), UniformAt(2, 1));
  EXPECT_NE(SampleStream(1, 0), SampleStream(1, 1));
}

TEST(SamplingTest, OtherDevicesTakeOneTransferForTheWholeBatch) {
  at::Tensor logits = RandomLogits(32, 100, 8, 1.0).to(testing::FakeDevice());
  std::vector<SampleRow> rows(32);
  for (size_t r = 0; r < rows.size(); ++r) rows[r] = {{1.0f, r % 2 ? 10 : 0, 0.9f}, 1, r};
  testing::ResetFakeDeviceCounts();
  Sample(logits, rows);
  const testing::FakeDeviceCounts counts = testing::ReadFakeDeviceCounts();
  EXPECT_EQ(counts.synchronisations, 0);
  EXPECT_EQ(counts.to_host, 1);
}

}  // namespace
}  // namespace millrace
