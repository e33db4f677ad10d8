#include "buffer/prompt_source.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace millrace {
namespace {

TEST(PromptSourceTest, AnEndlessTaskGivesItsProblemsInOrder) {
  const PromptSource source(3, 0);
  for (uint64_t p = 0; p < 10; ++p) EXPECT_EQ(source.ProblemAt(p), p);
}

TEST(PromptSourceTest, EveryEpochIsAPermutationOfTheSplit) {
  for (const uint64_t size : {1u, 2u, 3u, 7u, 16u, 100u, 1000u}) {
    const PromptSource source(5, size);
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      std::set<uint64_t> seen;
      for (uint64_t p = 0; p < size; ++p) seen.insert(source.ProblemAt(epoch * size + p));
      ASSERT_EQ(seen.size(), size);
      ASSERT_EQ(*seen.rbegin(), size - 1);
    }
  }
}

TEST(PromptSourceTest, EpochsAndSeedsDifferAndRepeatExactly) {
  const auto epoch = [](uint64_t seed, uint64_t number) {
    const PromptSource source(seed, 100);
    std::vector<uint64_t> result;
    for (uint64_t p = 0; p < 100; ++p) result.push_back(source.ProblemAt(number * 100 + p));
    return result;
  };
  EXPECT_EQ(epoch(1, 0), epoch(1, 0));
  EXPECT_NE(epoch(1, 0), epoch(1, 1));
  EXPECT_NE(epoch(1, 0), epoch(2, 0));
}

TEST(PromptSourceTest, GroupSeedsAreFixedForEver) {
  // SplitMix64(0) of the paper's reference sequence.
  EXPECT_EQ(SplitMix64(0), 0xe220a8397b1dcdafULL);
  EXPECT_EQ(GroupSeed(7, 1), GroupSeed(7, 1));
  std::set<uint64_t> seeds;
  for (uint64_t run = 0; run < 10; ++run) {
    for (uint64_t group = 1; group <= 100; ++group) seeds.insert(GroupSeed(run, group));
  }
  EXPECT_EQ(seeds.size(), 1000u);
}

}  // namespace
}  // namespace millrace
