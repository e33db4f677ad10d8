#include "learner/packer.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;

struct Sample {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> mask;
  uint64_t group;
};

std::vector<PackInput> Inputs(const std::vector<Sample>& samples) {
  std::vector<PackInput> inputs;
  for (const Sample& s : samples) inputs.push_back({s.tokens, s.mask, s.group});
  return inputs;
}

TEST(Packer, ComputesAGroupsPromptOnceAndPredictsFirstTokensFromItsLastRow) {
  const std::vector<Sample> samples = {{{1, 2, 3, 10, 11, 12}, {0, 0, 0, 1, 1, 1}, 5},
                                       {{1, 2, 3, 20, 21}, {0, 0, 0, 1, 1}, 5}};
  auto micros = PackTrajectories(Inputs(samples), 100);
  ASSERT_TRUE(micros.ok());
  ASSERT_EQ(micros->size(), 1u);
  const MicroBatch& m = (*micros)[0];
  // The last token of each completion is a target only.
  EXPECT_THAT(m.batch.token_ids, ElementsAre(1, 2, 3, 10, 11, 20));
  EXPECT_THAT(m.batch.positions, ElementsAre(0, 1, 2, 3, 4, 3));
  ASSERT_EQ(m.batch.segments.size(), 3u);
  EXPECT_EQ(m.batch.segments[0].prefix, -1);
  EXPECT_EQ(m.batch.segments[1].prefix, 0);
  EXPECT_EQ(m.batch.segments[1].begin, 3);
  EXPECT_EQ(m.batch.segments[1].end, 5);
  EXPECT_EQ(m.batch.segments[2].prefix, 0);
  EXPECT_THAT(m.rows, ElementsAre(2, 3, 4, 2, 5));
  EXPECT_THAT(m.targets, ElementsAre(10, 11, 12, 20, 21));
  EXPECT_THAT(m.trajectory, ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(m.token, ElementsAre(3, 4, 5, 3, 4));
}

TEST(Packer, KeepsMaskedTokensOfACompletionAsContextOnly) {
  const std::vector<Sample> samples = {{{1, 10, 50, 51, 11, 60}, {0, 1, 0, 0, 1, 0}, 5}};
  auto micros = PackTrajectories(Inputs(samples), 100);
  ASSERT_TRUE(micros.ok());
  const MicroBatch& m = (*micros)[0];
  EXPECT_THAT(m.batch.token_ids, ElementsAre(1, 10, 50, 51));
  EXPECT_THAT(m.rows, ElementsAre(0, 3));
  EXPECT_THAT(m.targets, ElementsAre(10, 11));
}

TEST(Packer, NeedsNoSegmentForACompletionOfOneToken) {
  const std::vector<Sample> samples = {{{1, 2, 9}, {0, 0, 1}, 5}, {{1, 2, 8}, {0, 0, 1}, 5}};
  auto micros = PackTrajectories(Inputs(samples), 100);
  ASSERT_TRUE(micros.ok());
  const MicroBatch& m = (*micros)[0];
  EXPECT_EQ(m.batch.segments.size(), 1u);
  EXPECT_THAT(m.rows, ElementsAre(1, 1));
  EXPECT_THAT(m.targets, ElementsAre(9, 8));
}

TEST(Packer, SkipsATargetThatNothingPredicts) {
  const std::vector<Sample> samples = {{{4, 5, 6}, {1, 1, 1}, 5}, {{7}, {1}, 6}};
  auto micros = PackTrajectories(Inputs(samples), 100);
  ASSERT_TRUE(micros.ok());
  ASSERT_EQ(micros->size(), 1u);
  const MicroBatch& m = (*micros)[0];
  EXPECT_THAT(m.batch.token_ids, ElementsAre(4, 5));
  EXPECT_THAT(m.rows, ElementsAre(0, 1));
  EXPECT_THAT(m.targets, ElementsAre(5, 6));
  EXPECT_EQ(CountTargets(Inputs(samples)[0]), 2);
}

TEST(Packer, RepeatsThePromptWhereTheBudgetEndsAndLetsABigTrajectoryGoAlone) {
  std::vector<Sample> samples;
  for (int i = 0; i < 3; ++i) samples.push_back({{1, 2, 3, 4}, {0, 0, 1, 1}, 5});
  samples.push_back({std::vector<int32_t>(50, 3), std::vector<uint8_t>(50, 1), 6});
  samples.push_back({{1, 2, 3, 4}, {0, 0, 1, 1}, 7});
  auto micros = PackTrajectories(Inputs(samples), 4);
  ASSERT_TRUE(micros.ok());
  std::vector<size_t> sizes;
  for (const MicroBatch& m : *micros) sizes.push_back(m.batch.token_ids.size());
  EXPECT_THAT(sizes, ElementsAre(4, 3, 49, 3));
}

TEST(Packer, GivesEachDifferentPromptOfAGroupItsOwnSegment) {
  const std::vector<Sample> samples = {{{1, 2, 9, 9}, {0, 0, 1, 1}, 5},
                                       {{1, 3, 9, 9}, {0, 0, 1, 1}, 5},
                                       {{1, 2, 8, 8}, {0, 0, 1, 1}, 5}};
  auto micros = PackTrajectories(Inputs(samples), 100);
  ASSERT_TRUE(micros.ok());
  const MicroBatch& m = (*micros)[0];
  ASSERT_EQ(m.batch.segments.size(), 5u);
  EXPECT_EQ(m.batch.segments[4].prefix, 0);
}

TEST(Packer, NamesAMaskOfAnotherLength) {
  const std::vector<Sample> samples = {{{1, 2, 9}, {0, 1}, 5}};
  auto micros = PackTrajectories(Inputs(samples), 100);
  ASSERT_FALSE(micros.ok());
  EXPECT_NE(micros.status().message().find("group 5 has 3 tokens"), std::string::npos);
}

// For every target: walking back from its row gives the tokens before it in its trajectory.
void CheckContexts(const MicroBatch& m, const std::vector<Sample>& samples) {
  for (size_t i = 0; i < m.rows.size(); ++i) {
    const Sample& s = samples[m.trajectory[i]];
    int64_t row = m.rows[i];
    ASSERT_EQ(m.targets[i], s.tokens[m.token[i]]);
    size_t segment = 0;
    while (m.batch.segments[segment].end <= row) ++segment;
    for (int32_t t = m.token[i] - 1; t >= 0; --t) {
      ASSERT_EQ(m.batch.token_ids[row], s.tokens[t]);
      ASSERT_EQ(m.batch.positions[row], t);
      if (row-- == m.batch.segments[segment].begin && t > 0) {
        segment = static_cast<size_t>(m.batch.segments[segment].prefix);
        row = m.batch.segments[segment].end - 1;
      }
    }
  }
}

TEST(Packer, GivesEveryTargetItsWholeContextForRandomGroupsAndBudgets) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    auto draw = [&](int low, int high) {
      return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
    };
    std::vector<Sample> samples;
    int64_t targets = 0;
    for (int group = draw(1, 4); group > 0; --group) {
      std::vector<int32_t> prompt;
      for (int i = draw(1, 6); i > 0; --i) prompt.push_back(draw(0, 99));
      for (int member = draw(1, 4); member > 0; --member) {
        Sample s{prompt, std::vector<uint8_t>(prompt.size(), 0), static_cast<uint64_t>(group)};
        for (int i = draw(0, 6); i > 0; --i) {
          s.tokens.push_back(draw(0, 99));
          s.mask.push_back(draw(0, 3) != 0);
          targets += s.mask.back();
        }
        samples.push_back(std::move(s));
      }
    }
    const int64_t budget = draw(1, 40);
    auto micros = PackTrajectories(Inputs(samples), budget);
    ASSERT_TRUE(micros.ok());
    int64_t packed = 0;
    for (const MicroBatch& m : *micros) {
      packed += static_cast<int64_t>(m.rows.size());
      CheckContexts(m, samples);
      int first = m.trajectory.front();
      if (m.trajectory.back() != first) {
        ASSERT_LE(static_cast<int64_t>(m.batch.token_ids.size()), budget);
      }
    }
    ASSERT_EQ(packed, targets);
  }
}

}  // namespace
}  // namespace millrace
