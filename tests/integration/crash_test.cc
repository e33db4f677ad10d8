// kill -9 of each process in mid-run, then recovery: no stored trajectory is lost and none is
// trained twice.
#include "gtest/gtest.h"
#include "tests/integration/run_harness.h"

namespace millrace::testing {
namespace {

struct Victim {
  const char* name;
  int kills;
};

class CrashTest : public ::testing::TestWithParam<Victim> {};

TEST_P(CrashTest, TheRunGoesOnAndEveryTrajectoryCountsOnce) {
  const int64_t steps = 150;
  TrainRun run({"run.steps=150", "eval.problems=0"});
  run.Start();
  std::set<std::string> stored;
  int64_t step = 3;
  for (int i = 0; i < GetParam().kills; ++i, step += 6) {
    ASSERT_TRUE(run.WaitForStep(step).ok()) << run.Output();
    const auto before = run.Endpoint(GetParam().name);
    ASSERT_TRUE(before.ok());
    const auto keys = run.Audit().keys;
    stored.insert(keys.begin(), keys.end());
    ASSERT_TRUE(run.Kill(GetParam().name).ok());
    ASSERT_TRUE(run.WaitFor("the restart",
                            [&] {
                              const auto now = run.Endpoint(GetParam().name);
                              return now.ok() && (*now)["pid"] != (*before)["pid"];
                            })
                    .ok())
        << run.Output();
  }
  const auto code = run.WaitForEnd();
  ASSERT_TRUE(code.ok()) << code.status() << run.Output();
  ASSERT_EQ(*code, 0) << run.Output();
  EXPECT_FALSE(stored.empty());
  ExpectExactlyOnce(run, steps, stored);
}

INSTANTIATE_TEST_SUITE_P(Processes, CrashTest,
                         ::testing::Values(Victim{"rollout-0", 2}, Victim{"buffer", 2},
                                           Victim{"learner", 2}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

TEST(ResumeTest, AStoppedRunIsResumedFromItsDirectory) {
  TrainRun run({"run.steps=16", "eval.problems=0"});
  run.Start();
  ASSERT_TRUE(run.WaitForStep(5).ok());
  ASSERT_TRUE(run.Stop().ok()) << run.Output();
  const auto stored = run.Audit().keys;
  run.Start();
  const auto code = run.WaitForEnd();
  ASSERT_TRUE(code.ok() && *code == 0) << run.Output();
  ExpectExactlyOnce(run, 16, stored);
}

}  // namespace
}  // namespace millrace::testing
