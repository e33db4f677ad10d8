#include "evaluation/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace millrace {
namespace {

using ::testing::HasSubstr;

std::vector<ProblemOutcome> Outcomes(int count, int64_t samples, int64_t correct) {
  ProblemOutcome outcome;
  outcome.samples = samples;
  outcome.correct = correct;
  outcome.tokens = 10 * samples;
  outcome.lowest_reward = correct < samples ? 0 : 1;
  outcome.highest_reward = correct > 0 ? 1 : 0;
  return std::vector<ProblemOutcome>(count, outcome);
}

std::vector<ProblemOutcome> operator+(std::vector<ProblemOutcome> a,
                                      const std::vector<ProblemOutcome>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(EvaluationReport, PassAtKIsTheMeanOfUnbiasedEstimates) {
  const auto report =
      SummariseEvaluation(Outcomes(1, 8, 0) + Outcomes(1, 8, 1) + Outcomes(2, 8, 8));
  ASSERT_EQ(report.pass_at.size(), 4u);
  const double one_of_eight[] = {1.0 / 8, 1.0 / 4, 1.0 / 2, 1};
  const int64_t ks[] = {1, 2, 4, 8};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(report.pass_at[i].k, ks[i]);
    EXPECT_NEAR(report.pass_at[i].value, (one_of_eight[i] + 2) / 4, 1e-12);
    EXPECT_LE(report.pass_at[i].interval.low, report.pass_at[i].value);
    EXPECT_GE(report.pass_at[i].interval.high, report.pass_at[i].value);
  }
  EXPECT_EQ(report.mixed, 0.25);
  EXPECT_EQ(report.mixed_interval.low, WilsonInterval(0.25, 4).low);
  EXPECT_EQ(report.all_wrong, 0.25);
  EXPECT_EQ(report.tokens_mean, 10);
}

TEST(EvaluationReport, KStopsAtTheFewestSamplesOfAProblem) {
  const auto report = SummariseEvaluation(Outcomes(3, 6, 2) + Outcomes(1, 5, 2));
  ASSERT_EQ(report.pass_at.size(), 4u);
  EXPECT_EQ(report.pass_at.back().k, 5);
  EXPECT_TRUE(SummariseEvaluation({}).pass_at.empty());
}

// 1000 draws of 8 samples with known chances: the estimates of pass@4 average to the truth.
TEST(EvaluationReport, PassAtKIsUnbiased) {
  std::mt19937_64 random(11);
  const double chance[] = {0.05, 0.2, 0.6};
  double sum = 0, truth = 0;
  constexpr int kDraws = 4000;
  for (int draw = 0; draw < kDraws; ++draw) {
    std::vector<ProblemOutcome> outcomes;
    for (const double p : chance) {
      outcomes.push_back({});
      outcomes.back().samples = 8;
      outcomes.back().correct = std::binomial_distribution<int64_t>(8, p)(random);
    }
    sum += SummariseEvaluation(outcomes).pass_at[2].value;
  }
  for (const double p : chance) truth += (1 - std::pow(1 - p, 4)) / 3;
  EXPECT_NEAR(sum / kDraws, truth, 0.01);
}

TEST(EvaluationReport, SourcesAreToldApartWhenThereAreSeveral) {
  auto a = Outcomes(40, 4, 4), b = Outcomes(40, 4, 1);
  for (auto& outcome : a) outcome.source = "a";
  for (auto& outcome : b) {
    outcome.source = "b";
    outcome.greedy = &outcome != &b[0];
    outcome.baseline = false;
  }
  const auto report = SummariseEvaluation(a + b);
  EXPECT_EQ(report.sampled_by_source.at("a").accuracy, 1);
  EXPECT_EQ(report.sampled_by_source.at("b").accuracy, 0.25);
  EXPECT_EQ(report.greedy_by_source.size(), 1u);
  EXPECT_EQ(report.greedy->problems, 40);
  EXPECT_EQ(report.baseline->correct, 0);
  EXPECT_TRUE(SummariseEvaluation(a).sampled_by_source.empty());
  const auto json = EvaluationToJson(report);
  EXPECT_EQ(json["by_source"]["b"]["sampled"]["accuracy"], 0.25);
  EXPECT_EQ(json["pass_at"].back()["k"], 4);
  EXPECT_EQ(json["advice"]["verdict"], "trainable");
}

TEST(Advice, SaysWhatTheFiguresMean) {
  auto cut = Outcomes(100, 8, 0);
  for (auto& outcome : cut) outcome.truncated = 6;
  auto half_cut = Outcomes(95, 8, 0) + Outcomes(5, 8, 1);
  for (auto& outcome : half_cut) outcome.truncated = 6;
  auto greedy = Outcomes(100, 8, 4);
  for (auto& outcome : greedy) outcome.greedy = true;
  auto hot = Outcomes(100, 8, 0);
  for (auto& outcome : hot) outcome.greedy = true;
  auto partial = Outcomes(100, 8, 0);
  for (auto& outcome : partial) outcome.highest_reward = 0.2;
  const std::tuple<std::vector<ProblemOutcome>, const char*, const char*> cases[] = {
      {Outcomes(100, 8, 0), "too_hard", "take a bigger model"},
      {Outcomes(98, 8, 0) + Outcomes(2, 8, 1), "too_hard", "about 50 groups for each"},
      // SmolLM2-135M on GSM8K as docs/results.md has it.
      {Outcomes(90, 8, 0) + Outcomes(5, 8, 1) + Outcomes(3, 8, 2) + Outcomes(2, 8, 3), "too_hard",
       "pass@8 is 10.0 %, and 10.0 % (95 %: 5.5 % to 17.4 %) of the groups of 8"},
      {half_cut, "too_hard", "larger groups may help too; so may longer answers, 75.0 % end"},
      {cut, "cut_off", "75.0 % of the samples"},
      {hot, "too_hard", "pass@8 is 0.0 %"},
      {partial, "trainable", "100.0 % (95 %"},
      {Outcomes(100, 8, 8), "saturated", "can do this already"},
      {Outcomes(92, 8, 8) + Outcomes(8, 8, 5), "saturated", "can do this already"},
      {Outcomes(96, 8, 8) + Outcomes(4, 8, 0), "saturated", "can do this already"},
      {Outcomes(100, 1, 1), "saturated", "can do this already"},
      {greedy, "saturated", "make the samples agree with them (100.0 %"},
      {Outcomes(50, 8, 0) + Outcomes(45, 8, 8) + Outcomes(5, 8, 3), "weak", "5.0 % (95 %"},
      {Outcomes(88, 8, 0) + Outcomes(12, 8, 3), "too_hard", "12.0 % (95 %: 7.0 % to 19.8 %)"},
      {Outcomes(87, 8, 0) + Outcomes(13, 8, 3), "unknown", "13.0 % (95 %: 7.8 % to 21.0 %)"},
      {Outcomes(73, 8, 0) + Outcomes(27, 8, 3), "unknown", "more problems would tell"},
      {Outcomes(72, 8, 0) + Outcomes(28, 8, 3), "trainable", "28.0 % (95 %: 20.1 % to 37.5 %)"},
      {Outcomes(50, 8, 0) + Outcomes(50, 8, 3), "trainable", "50.0 % (95 %"},
      {Outcomes(4, 8, 0) + Outcomes(1, 8, 3), "unknown", "of 5 problems only"},
      {Outcomes(5, 8, 0), "unknown", "0.0 % (95 %: 0.0 % to 43.4 %)"},
      {Outcomes(100, 1, 0), "unknown", "two samples a problem"},
      {Outcomes(10, 8, 3), "trainable", "of 10 problems only"},
      {{}, "unknown", "of 0 problems only"}};
  for (const auto& [outcomes, verdict, text] : cases) {
    const Advice advice = SummariseEvaluation(outcomes).advice;
    EXPECT_EQ(advice.verdict, verdict) << text;
    EXPECT_THAT(advice.text, HasSubstr(text));
  }
}

// All splits of nine to one of what is not mixed are "nine of ten", whatever they are in binary.
TEST(Advice, NineOfTenAreMostly) {
  for (int tenth = 6; tenth <= 60; ++tenth) {
    const auto others = Outcomes(2, 8, 3) + Outcomes(tenth, 8, 8);
    const auto verdict = [&](int wrong) {
      return SummariseEvaluation(others + Outcomes(wrong, 8, 0)).advice.verdict;
    };
    EXPECT_EQ(verdict(9 * tenth), "too_hard") << tenth;
    EXPECT_EQ(verdict(8 * tenth), "weak") << tenth;
  }
}

TEST(EvaluationReport, GroupsAreThoseOfTwoSamplesOrMore) {
  const auto json = EvaluationToJson(
      SummariseEvaluation(Outcomes(60, 4, 0) + Outcomes(30, 4, 1) + Outcomes(10, 4, 4)));
  EXPECT_EQ(json["mixed_groups"]["value"], 0.3);
  EXPECT_EQ(json["mixed_groups"]["low"], WilsonInterval(0.3, 100).low);
  EXPECT_EQ(json["mixed_groups"]["high"], WilsonInterval(0.3, 100).high);
  EXPECT_EQ(json["mixed_groups"]["all_wrong"], 0.6);
  EXPECT_EQ(json["mixed_groups"]["all_right"], 0.1);
  EXPECT_FALSE(EvaluationToJson(SummariseEvaluation(Outcomes(9, 1, 0))).contains("mixed_groups"));
}

}  // namespace
}  // namespace millrace
