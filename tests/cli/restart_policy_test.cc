#include "cli/restart_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace millrace {
namespace {

using ::testing::HasSubstr;

const absl::Time kStart = absl::FromUnixSeconds(1000);
const ChildExit kCrash{1, 0};
const ChildExit kKilled{0, 9};
const ChildExit kUsage{2, 0};
const ChildExit kGaveUp{4, 0};
const ChildExit kClean{0, 0};

RestartPolicy::Options Options() {
  RestartPolicy::Options options;
  options.backoff = {absl::Seconds(1), absl::Seconds(8), 2, /*jitter=*/0};
  options.max_restarts = 4;
  options.window = absl::Seconds(100);
  options.max_failed_starts = 3;
  return options;
}

// One life of the child and what the policy must say at its end.
struct Life {
  int seconds = 0;  // how long it ran
  bool announced = true;
  ChildExit exit;
  int delay = 0;  // expected, seconds; -1 = gives up
};

struct PolicyCase {
  std::string name;
  std::vector<Life> lives;
  std::string reason;  // of the last decision
};

class RestartPolicyTest : public ::testing::TestWithParam<PolicyCase> {};

TEST_P(RestartPolicyTest, DecidesAsTheTableSays) {
  RestartPolicy policy(Options(), /*seed=*/1);
  absl::Time now = kStart;
  RestartPolicy::Decision decision;
  int restarts = 0;
  for (const Life& life : GetParam().lives) {
    policy.OnStart(now);
    if (life.announced) policy.OnAnnounced();
    now += absl::Seconds(life.seconds);
    decision = policy.OnExit(life.exit, now);
    ASSERT_EQ(decision.restart, life.delay >= 0);
    if (!decision.restart) break;
    EXPECT_EQ(policy.restarts(), ++restarts);
    EXPECT_EQ(decision.delay, absl::Seconds(life.delay));
    now += decision.delay;
  }
  EXPECT_THAT(decision.reason, HasSubstr(GetParam().reason));
}

INSTANTIATE_TEST_SUITE_P(
    Table, RestartPolicyTest,
    ::testing::Values(
        PolicyCase{"ACrashIsRestartedWithGrowingDelay",
                   {{5, true, kCrash, 1}, {5, true, kKilled, 2}, {5, true, kCrash, 4}},
                   ""},
        PolicyCase{"AnEarlyCleanExitIsRestartedToo", {{5, true, kClean, 1}}, ""},
        PolicyCase{"TooManyWithinTheWindowGivesUp",
                   {{1, true, kKilled, 1},
                    {1, true, kKilled, 2},
                    {1, true, kKilled, 4},
                    {1, true, kKilled, 8},
                    {1, true, kKilled, -1}},
                   "restarted 4 times within"},
        PolicyCase{"OldRestartsLeaveTheWindowAndALongLifeResetsTheDelay",
                   {{1, true, kKilled, 1},
                    {1, true, kKilled, 2},
                    {1, true, kKilled, 4},
                    {1, true, kKilled, 8},
                    {200, true, kKilled, 1},
                    {1, true, kKilled, 2}},
                   ""},
        PolicyCase{"NeverServingGivesUpAfterThreeTries",
                   {{1, false, kCrash, 1}, {1, false, kCrash, 2}, {1, false, kCrash, -1}},
                   "never got as far as serving, in 3 tries"},
        PolicyCase{"BeingKilledBeforeServingIsNoFailedStart",
                   {{1, false, kKilled, 1}, {1, false, kKilled, 2}, {1, false, kKilled, 4}},
                   ""},
        PolicyCase{"ServingOnceMakesLaterFailedStartsOrdinary",
                   {{1, true, kCrash, 1},
                    {1, false, kCrash, 2},
                    {1, false, kCrash, 4},
                    {1, false, kCrash, 8}},
                   ""},
        PolicyCase{"AChildThatGaveUpIsNotMadeToWaitAgain",
                   {{500, true, kCrash, 1}, {700, true, kGaveUp, -1}},
                   "it gave up"},
        PolicyCase{"WrongFlagsOrConfigAreNeverRetried",
                   {{1, true, kUsage, -1}},
                   "flags or config are wrong"}),
    [](const auto& info) { return info.param.name; });

TEST(RestartPolicyTest, WithoutRestartsTheFirstDeathIsTheLast) {
  RestartPolicy::Options options = Options();
  options.max_restarts = 0;
  RestartPolicy policy(options, 1);
  policy.OnStart(kStart);
  policy.OnAnnounced();
  EXPECT_FALSE(policy.OnExit(kKilled, kStart).restart);
}

TEST(RestartPolicyTest, TakesItsNumbersFromTheConfig) {
  RunConfig::Supervisor config;
  config.backoff_seconds = 0.25;
  config.max_backoff_seconds = 3;
  config.max_restarts = 7;
  config.restart_window_seconds = 11;
  const RestartPolicy::Options options = RestartPolicy::FromConfig(config);
  EXPECT_EQ(options.backoff.initial, absl::Milliseconds(250));
  EXPECT_EQ(options.backoff.max, absl::Seconds(3));
  EXPECT_EQ(options.max_restarts, 7);
  EXPECT_EQ(options.window, absl::Seconds(11));
}

TEST(DescribeExitTest, NamesTheCodeOrTheSignal) {
  EXPECT_EQ(DescribeExit(kCrash), "exited with code 1");
  EXPECT_EQ(DescribeExit(kKilled), "was killed by signal 9 (Killed)");
}

}  // namespace
}  // namespace millrace
