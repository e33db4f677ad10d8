#include "learner/advantage.h"

#include <cmath>

#include "gtest/gtest.h"
#include "tests/learner/golden_json.h"

namespace millrace {
namespace {

using testing::Flatten;
using testing::ReadGolden;

AdvantageOptions OptionsOf(const nlohmann::json& c) {
  AdvantageOptions options;
  options.scale = *ParseAdvantageScale(c["scale_rewards"]);
  if (c["aggregation"] == "normalize_then_sum") {
    options.aggregation = RewardAggregation::kNormalizeThenSum;
  }
  options.weights = Flatten(c["weights"]);
  return options;
}

TEST(Advantages, EqualTheGoldenValuesOfEveryScaleAndAggregation) {
  const nlohmann::json golden = ReadGolden("losses/advantages.json");
  ASSERT_GE(golden["cases"].size(), 12u);
  for (const auto& c : golden["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const std::vector<double> rewards = Flatten(c["rewards_per_func"]);
    const std::vector<double> expected = Flatten(c["advantages"]);
    std::vector<uint64_t> groups;
    for (size_t i = 0; i < expected.size(); ++i) groups.push_back(i / 4);
    auto got = GroupAdvantages(groups, rewards, rewards.size() / expected.size(), OptionsOf(c));
    ASSERT_TRUE(got.ok()) << got.status();
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR((*got)[i], expected[i], 1e-6) << i;
  }
}

TEST(Advantages, DoNotDependOnWhereTheMembersOfAGroupStand) {
  auto together = GroupAdvantages({1, 1, 2, 2}, {1, 0, 3, 5}, 1, {});
  auto mixed = GroupAdvantages({1, 2, 1, 2}, {1, 3, 0, 5}, 1, {});
  ASSERT_TRUE(together.ok() && mixed.ok());
  EXPECT_EQ((*together)[0], (*mixed)[0]);
  EXPECT_EQ((*together)[1], (*mixed)[2]);
  EXPECT_EQ((*together)[2], (*mixed)[1]);
  EXPECT_EQ((*together)[3], (*mixed)[3]);
}

TEST(Advantages, LeaveMembersWithoutAVerdictOutOfTheStatistics) {
  const double none = std::nan("");
  auto with = GroupAdvantages({7, 7, 7}, {1, none, 0}, 1, {});
  auto without = GroupAdvantages({7, 7}, {1, 0}, 1, {});
  ASSERT_TRUE(with.ok() && without.ok());
  EXPECT_EQ((*with)[0], (*without)[0]);
  EXPECT_EQ((*with)[1], 0);
  EXPECT_EQ((*with)[2], (*without)[1]);
}

TEST(Advantages, OfAGroupOfOneAreZero) {
  auto got = GroupAdvantages({7}, {5}, 1, {});
  ASSERT_TRUE(got.ok());
  EXPECT_EQ((*got)[0], 0);
}

TEST(Advantages, NameTheCountsThatDoNotAgree) {
  auto got = GroupAdvantages({7, 8}, {5}, 1, {});
  ASSERT_FALSE(got.ok());
  EXPECT_NE(got.status().message().find("2 members, 1 rewards"), std::string::npos) << got.status();
}

}  // namespace
}  // namespace millrace
