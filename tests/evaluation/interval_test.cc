#include "evaluation/interval.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace millrace {
namespace {

struct WilsonCase {
  double correct, n, low, high;
};

// The roots of |p - x| = z sqrt(x (1 - x) / n), solved as a quadratic in Python; 81 of 263 and 1 of
// 29 are worked examples of R. G. Newcombe, Statistics in Medicine 17, 1998 (0.2553 to 0.3662 and
// 0.0061 to 0.1718).
TEST(WilsonIntervalTest, AgreesWithReferenceFigures) {
  const std::vector<WilsonCase> cases = {
      {0, 10, 0.0000000000, 0.2775327999}, {10, 10, 0.7224672001, 1.0000000000},
      {5, 10, 0.2365930905, 0.7634069095}, {81, 263, 0.2552885199, 0.3662095770},
      {1, 29, 0.0061132143, 0.1717552188}, {780, 800, 0.9617010785, 0.9837589891}};
  for (const WilsonCase& c : cases) {
    const Interval i = WilsonInterval(c.correct / c.n, c.n);
    EXPECT_NEAR(i.low, c.low, 1e-9) << c.correct << " of " << c.n;
    EXPECT_NEAR(i.high, c.high, 1e-9) << c.correct << " of " << c.n;
  }
}

TEST(WilsonIntervalTest, WithoutTrialsNothingIsKnown) {
  EXPECT_EQ(WilsonInterval(0, 0).low, 0);
  EXPECT_EQ(WilsonInterval(0, 0).high, 1);
}

TEST(ClusteredProportionTest, OneSampleAProblemIsTheSimpleInterval) {
  std::vector<ProblemResult> problems;
  for (int i = 0; i < 100; ++i) problems.push_back({1, i < 30 ? 1 : 0});
  const Proportion clustered = ClusteredProportion(problems);
  const Proportion simple = SimpleProportion(100, 30);
  EXPECT_EQ(clustered.design_effect, 1);
  EXPECT_DOUBLE_EQ(clustered.interval.low, simple.interval.low);
  EXPECT_DOUBLE_EQ(clustered.interval.high, simple.interval.high);
  EXPECT_EQ(clustered.problems, 100);
}

TEST(ClusteredProportionTest, SamplesThatAlwaysAgreeCountOnceAProblem) {
  std::vector<ProblemResult> problems;
  for (int i = 0; i < 100; ++i) problems.push_back({4, i < 30 ? 4 : 0});
  const Proportion p = ClusteredProportion(problems);
  EXPECT_DOUBLE_EQ(p.accuracy, 0.3);
  EXPECT_NEAR(p.design_effect, 4, 1e-9);
  EXPECT_NEAR(p.interval.low, WilsonInterval(0.3, 100).low, 1e-9);
}

TEST(ClusteredProportionTest, SamplesThatDifferWithinEveryProblemCountInFull) {
  std::vector<ProblemResult> problems(100, ProblemResult{4, 2});
  const Proportion p = ClusteredProportion(problems);
  EXPECT_DOUBLE_EQ(p.design_effect, 1);
  EXPECT_DOUBLE_EQ(p.effective_samples, 400);
}

TEST(ClusteredProportionTest, AtTheEndsEachProblemCountsOnce) {
  for (const int64_t correct : {0, 4}) {
    std::vector<ProblemResult> problems(50, ProblemResult{4, correct});
    const Proportion p = ClusteredProportion(problems);
    EXPECT_DOUBLE_EQ(p.effective_samples, 50);
    EXPECT_GT(p.interval.high - p.interval.low, 0.05);
  }
}

TEST(ClusteredProportionTest, NothingIsFineToo) {
  const Proportion p = ClusteredProportion({});
  EXPECT_EQ(p.samples, 0);
  EXPECT_EQ(p.accuracy, 0);
  EXPECT_EQ(p.interval.high, 1);
}

// Problems of different difficulty, four samples each: about 95 % of the intervals must hold the
// true mean, where the interval that takes all samples for independent ones holds it less often.
TEST(ClusteredProportionTest, CoversTheTruthAsOftenAsItSays) {
  constexpr uint64_t kSeed = 20240817;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  std::uniform_real_distribution<double> uniform;
  int covered = 0, naive = 0;
  constexpr int kRuns = 4000;
  for (int run = 0; run < kRuns; ++run) {
    std::vector<ProblemResult> problems;
    int64_t correct = 0;
    for (int i = 0; i < 200; ++i) {
      const double difficulty = uniform(random) < 0.5 ? 0.1 : 0.9;  // mean 0.5
      ProblemResult problem{4, 0};
      for (int s = 0; s < 4; ++s) problem.correct += uniform(random) < difficulty ? 1 : 0;
      correct += problem.correct;
      problems.push_back(problem);
    }
    const auto holds = [](const Interval& i) { return i.low <= 0.5 && 0.5 <= i.high; };
    covered += holds(ClusteredProportion(problems).interval) ? 1 : 0;
    naive += holds(SimpleProportion(800, correct).interval) ? 1 : 0;
  }
  EXPECT_NEAR(covered / double{kRuns}, 0.95, 0.015);
  EXPECT_LT(naive / double{kRuns}, 0.85);
}

TEST(TouchTest, IntervalsThatShareAPointTouch) {
  EXPECT_TRUE(Touch({0.1, 0.3}, {0.3, 0.5}));
  EXPECT_TRUE(Touch({0.1, 0.9}, {0.3, 0.5}));
  EXPECT_FALSE(Touch({0.1, 0.3}, {0.31, 0.5}));
  EXPECT_FALSE(Touch({0.31, 0.5}, {0.1, 0.3}));
}

TEST(PassAtKTest, IsTheChanceThatKOfTheSamplesHoldARightOne) {
  EXPECT_DOUBLE_EQ(PassAtK(5, 0, 3), 0);
  EXPECT_DOUBLE_EQ(PassAtK(5, 5, 1), 1);
  EXPECT_DOUBLE_EQ(PassAtK(4, 1, 1), 0.25);
  EXPECT_NEAR(PassAtK(4, 2, 2), 1 - 1.0 / 6, 1e-12);  // C(2,2) / C(4,2)
  EXPECT_DOUBLE_EQ(PassAtK(3, 1, 3), 1);
}

}  // namespace
}  // namespace millrace
