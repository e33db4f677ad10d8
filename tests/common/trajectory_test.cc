#include "common/trajectory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::StatusIs;
using ::testing::HasSubstr;

// Prompt of 2, then 2 sampled under version 3, a tool result of 1, and 2 sampled under 3 and 4.
Trajectory Valid() {
  Trajectory t;
  t.token_ids = {5, 6, 7, 8, 9, 10, 11};
  t.loss_mask = {0, 0, 1, 1, 0, 1, 1};
  t.logprobs = {0, 0, -0.5f, -1, 0, -2, 0};
  t.versions = {{3, 2, 4}, {3, 5, 6}, {4, 6, 7}};
  t.reward = 1;
  t.reward_components = {{"format", 1}};
  return t;
}

TEST(TrajectoryTest, AWholeOneIsValidAndCounted) {
  EXPECT_OK(ValidateTrajectory(Valid()));
  EXPECT_EQ(OldestVersion(Valid()), 3);
  EXPECT_EQ(SampledTokens(Valid()), 4);
}

TEST(TrajectoryTest, WithoutSampledTokensThereIsNoOldestVersion) {
  Trajectory t;
  t.token_ids = {1};
  t.loss_mask = {0};
  t.logprobs = {0};
  EXPECT_OK(ValidateTrajectory(t));
  EXPECT_EQ(OldestVersion(t), -1);
  EXPECT_EQ(SampledTokens(t), 0);
}

TEST(TrajectoryTest, ALogprobMayPassZeroByRounding) {
  Trajectory t = Valid();
  t.logprobs[2] = 5e-5f;
  EXPECT_OK(ValidateTrajectory(t));
}

struct BadCase {
  std::string name;
  std::function<void(Trajectory&)> spoil;
  std::string expected;
};

class BadTrajectoryTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadTrajectoryTest, IsRefusedWithTheFieldAndIndex) {
  Trajectory t = Valid();
  GetParam().spoil(t);
  EXPECT_THAT(ValidateTrajectory(t),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(GetParam().expected)));
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadTrajectoryTest,
    ::testing::Values(
        BadCase{"Empty", [](Trajectory& t) { t = Trajectory(); }, "token_ids is empty"},
        BadCase{"MaskLength", [](Trajectory& t) { t.loss_mask.pop_back(); },
                "loss_mask has 6 entries, token_ids has 7"},
        BadCase{"LogprobLength", [](Trajectory& t) { t.logprobs.push_back(0); },
                "logprobs has 8 entries"},
        BadCase{"NegativeToken", [](Trajectory& t) { t.token_ids[1] = -1; }, "token_ids[1] is -1"},
        BadCase{"MaskOfTwo", [](Trajectory& t) { t.loss_mask[2] = 2; }, "loss_mask[2] is 2"},
        BadCase{"PositiveLogprob", [](Trajectory& t) { t.logprobs[3] = 0.1f; }, "logprobs[3]"},
        BadCase{"NanLogprob", [](Trajectory& t) { t.logprobs[5] = NAN; }, "logprobs[5]"},
        BadCase{"InfiniteLogprob", [](Trajectory& t) { t.logprobs[5] = -INFINITY; }, "logprobs[5]"},
        BadCase{"NanReward", [](Trajectory& t) { t.reward = NAN; }, "reward is nan"},
        BadCase{"NanTemperature", [](Trajectory& t) { t.temperature = NAN; }, "temperature is nan"},
        BadCase{"NegativeTemperature", [](Trajectory& t) { t.temperature = -1; },
                "temperature is -1"},
        BadCase{"NanSeconds", [](Trajectory& t) { t.generate_seconds = NAN; },
                "generate_seconds is nan"},
        BadCase{"NanComponent", [](Trajectory& t) { t.reward_components[0].value = INFINITY; },
                "reward_components[0] (format)"},
        BadCase{"NoSpans", [](Trajectory& t) { t.versions.clear(); },
                "sampled token 2 has no version"},
        BadCase{"GapAtTheEnd", [](Trajectory& t) { t.versions.pop_back(); },
                "sampled token 6 has no version"},
        BadCase{"GapBetween", [](Trajectory& t) { t.versions[0].end = 3; },
                "sampled token 3 has no version"},
        BadCase{"OverThePrompt", [](Trajectory& t) { t.versions[0].begin = 1; },
                "versions[0] covers token 1, which was not sampled"},
        BadCase{"Overlap", [](Trajectory& t) { t.versions[2].begin = 5; }, "versions[2] is [5, 7)"},
        BadCase{"BeyondTheEnd", [](Trajectory& t) { t.versions[2].end = 8; }, "versions[2]"},
        BadCase{"EmptySpan", [](Trajectory& t) { t.versions[1].end = 5; }, "versions[1]"},
        BadCase{"NegativeVersion", [](Trajectory& t) { t.versions[0].version = -2; },
                "versions[0].version is -2"}),
    [](const auto& info) { return info.param.name; });

TEST(TrajectoryStatusTest, HasItsNameInCapitals) {
  EXPECT_STREQ(ToString(TrajectoryStatus::kCompleted), "COMPLETED");
  EXPECT_STREQ(ToString(TrajectoryStatus::kFailed), "FAILED");
}

}  // namespace
}  // namespace millrace
