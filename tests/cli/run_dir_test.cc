#include "cli/run_dir.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "tests/cli/temp_dir_test.h"

namespace millrace {
namespace {

using ::millrace::testing::IsOkAndHolds;
using ::millrace::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1700000000);

using RunDirTest = TempDirTest;

TEST_F(RunDirTest, ANewOneHoldsTheWholeConfigAndTheFoldersOfARun) {
  RunConfig config;
  config.run.seed = 5;
  config.model.path = "models/x";
  ASSERT_OK_AND_ASSIGN(const RunDir run, PrepareRunDir(config, Path("run"), kNow));
  EXPECT_FALSE(run.resumed);
  EXPECT_EQ(run.path, Path("run"));
  ASSERT_OK_AND_ASSIGN(const RunConfig written, LoadConfig(Path("run/config.toml")));
  EXPECT_EQ(written.run.seed, 5);
  EXPECT_EQ(written.run.dir, Path("run"));
  EXPECT_EQ(written.model.path.front(), '/');
  EXPECT_TRUE(FileExists(Path("run/logs")));
  EXPECT_TRUE(FileExists(Path("run/endpoints")));
}

TEST_F(RunDirTest, TheFlagWinsOverTheConfig) {
  RunConfig config;
  config.run.dir = Path("a");
  EXPECT_EQ(PrepareRunDir(config, Path("b"), kNow)->path, Path("b"));
  EXPECT_EQ(PrepareRunDir(config, "", kNow)->path, Path("a"));
}

TEST_F(RunDirTest, TheSameRunIsResumedAndStaleEndpointsGo) {
  RunConfig config;
  ASSERT_OK(PrepareRunDir(config, Path("run"), kNow));
  Write("run/endpoints/buffer.json", "{}");
  Write("run/metrics.jsonl", "{}");
  config.run.steps = 99;  // may change
  config.rollout.servers = 5;
  ASSERT_OK_AND_ASSIGN(const RunDir run, PrepareRunDir(config, Path("run"), kNow));
  EXPECT_TRUE(run.resumed);
  EXPECT_EQ(LoadConfig(Path("run/config.toml"))->run.steps, 99);
  EXPECT_FALSE(FileExists(Path("run/endpoints/buffer.json")));
  EXPECT_TRUE(FileExists(Path("run/metrics.jsonl")));
}

TEST_F(RunDirTest, AnotherRunIsRefusedByFieldAndLeftAsItWas) {
  RunConfig config;
  ASSERT_OK(PrepareRunDir(config, Path("run"), kNow));
  config.learner.lr = 0.5;
  EXPECT_THAT(
      PrepareRunDir(config, Path("run"), kNow),
      StatusIs(absl::StatusCode::kAlreadyExists,
               AllOf(HasSubstr(Path("run")), HasSubstr("learner.lr was 1e-05 and is now 0.5"))));
  EXPECT_EQ(LoadConfig(Path("run/config.toml"))->learner.lr, 1e-5);
}

TEST_F(RunDirTest, ARunThatIsWorkedInIsRefusedByProcessAndLeftAsItWas) {
  RunConfig config;
  ASSERT_OK_AND_ASSIGN(RunDir first, PrepareRunDir(config, Path("run"), kNow));
  Write("run/endpoints/buffer.json", "{}");
  config.run.steps = 99;
  EXPECT_THAT(PrepareRunDir(config, Path("run"), kNow).status(),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr(Path("run")), HasSubstr("in use"),
                             HasSubstr(absl::StrCat("process ", getpid())))));
  EXPECT_TRUE(FileExists(Path("run/endpoints/buffer.json")));
  EXPECT_EQ(LoadConfig(Path("run/config.toml"))->run.steps, 16);
  first.lock = RunLock();
  EXPECT_OK(PrepareRunDir(config, Path("run"), kNow).status());
}

TEST_F(RunDirTest, ADirectoryThatWasOnlyLockedIsNew) {
  ASSERT_OK(MakeDirectories(Path("run")));
  Write("run/run.lock", "1");
  ASSERT_OK_AND_ASSIGN(const RunDir run, PrepareRunDir(RunConfig(), Path("run"), kNow));
  EXPECT_FALSE(run.resumed);
}

TEST_F(RunDirTest, OneForProcessesStartedByHandHoldsTheConfig) {
  RunConfig config;
  config.run.seed = 5;
  config.model.path = "models/x";
  ASSERT_OK_AND_ASSIGN(const RunInit init, InitRunDir(config, Path("run")));
  EXPECT_FALSE(init.resumed);
  ASSERT_OK_AND_ASSIGN(const RunConfig written, LoadConfig(Path("run/config.toml")));
  EXPECT_EQ(written.run.seed, 5);
  EXPECT_EQ(written.run.dir, Path("run"));
  EXPECT_EQ(written.model.path.front(), '/');
  // Nothing has come of it yet.
  config.run.seed = 6;
  ASSERT_OK(InitRunDir(config, Path("run")));
  EXPECT_EQ(LoadConfig(Path("run/config.toml"))->run.seed, 6);
}

TEST_F(RunDirTest, ARunThatHasBegunKeepsItsConfigButForWhatMayChange) {
  for (const char* progress : {"run/buffer.sqlite", "run/checkpoints/latest"}) {
    SCOPED_TRACE(progress);
    TearDown();
    SetUp();
    ASSERT_OK(MakeDirectories(Path("run/checkpoints")));
    RunConfig config;
    config.model.path = "models/x";
    config.task.digest = "abc";
    // As written by hand: paths from where the processes run.
    Write("run/config.toml", PrintConfig(config));
    Write(progress, "x");
    config.task.digest.clear();
    config.run.steps = 99;
    ASSERT_OK_AND_ASSIGN(const RunInit init, InitRunDir(config, Path("run")));
    EXPECT_TRUE(init.resumed);
    EXPECT_THAT(init.changes, ElementsAre("run.steps was 16 and is now 99"));
    EXPECT_EQ(LoadConfig(Path("run/config.toml"))->run.steps, 99);
    EXPECT_EQ(LoadConfig(Path("run/config.toml"))->task.digest, "abc");
    config.run.seed = 1;
    config.model.path = "models/y";
    EXPECT_THAT(InitRunDir(config, Path("run")).status(),
                StatusIs(absl::StatusCode::kAlreadyExists,
                         AllOf(HasSubstr("run.seed was 0 and is now 1"),
                               HasSubstr("model.path was \"/"), HasSubstr("/models/y\""))));
    EXPECT_EQ(LoadConfig(Path("run/config.toml"))->run.seed, 0);
  }
}

TEST_F(RunDirTest, ASummaryStaysUnlessThereAreMoreSteps) {
  RunConfig config;
  ASSERT_OK(InitRunDir(config, Path("run")));
  Write("run/buffer.sqlite", "x");
  Write("run/summary.json", "{\"steps\": 16}");
  ASSERT_OK(InitRunDir(config, Path("run")));
  EXPECT_TRUE(FileExists(Path("run/summary.json")));
  config.run.steps = 20;
  ASSERT_OK(InitRunDir(config, Path("run")));
  EXPECT_FALSE(FileExists(Path("run/summary.json")));
}

TEST_F(RunDirTest, AFolderOfSomethingElseIsRefused) {
  ASSERT_OK(MakeDirectories(Path("photos")));
  Write("photos/cat.jpg", "meow");
  EXPECT_THAT(PrepareRunDir(RunConfig(), Path("photos"), kNow),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("holds no run")));
  EXPECT_THAT(ListDirectory(Path("photos")), IsOkAndHolds(::testing::ElementsAre("cat.jpg")));
}

TEST_F(RunDirTest, AFinishedRunIsRefusedUnlessThereAreMoreSteps) {
  RunConfig config;
  ASSERT_OK(PrepareRunDir(config, Path("run"), kNow));
  Write("run/summary.json", "{\"steps\": 16}");
  EXPECT_THAT(PrepareRunDir(config, Path("run"), kNow),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("is finished (16 steps)")));
  EXPECT_TRUE(FileExists(Path("run/summary.json")));
  config.run.steps = 20;
  EXPECT_OK(PrepareRunDir(config, Path("run"), kNow));
  EXPECT_FALSE(FileExists(Path("run/summary.json")));
}

TEST_F(RunDirTest, AnUnwritableOneIsNamed) {
  EXPECT_THAT(PrepareRunDir(RunConfig(), "/proc/no/run", kNow).status().ToString(),
              HasSubstr("run directory /proc/no/run cannot be used"));
}

TEST_F(RunDirTest, PeakMemoryIsAddedToTheSummary) {
  Write("summary.json", R"({"run":"r","steps":3})");
  ASSERT_OK(AddPeakMemory(dir_, {{"learner", 12}, {"buffer", 3}}));
  const auto json = nlohmann::json::parse(Read("summary.json"));
  EXPECT_EQ(json["run"], "r");
  EXPECT_EQ(json["peak_memory_bytes"]["learner"], 12);
  EXPECT_THAT(AddPeakMemory(Path("nope"), {}), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(RunDirTest, TheModelOfARunIsItsNewestCheckpoint) {
  EXPECT_THAT(FindModelDir(Path("nope")), StatusIs(absl::StatusCode::kNotFound, HasSubstr("nope")));
  ASSERT_OK(MakeDirectories(Path("run/checkpoints/step-000016")));
  EXPECT_THAT(FindModelDir(Path("run")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no checkpoint yet")));
  Write("run/checkpoints/latest", "step-000016\n");
  EXPECT_THAT(FindModelDir(Path("run")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("has no config.json")));
  Write("run/checkpoints/step-000016/config.json", "{}");
  EXPECT_THAT(FindModelDir(Path("run")), IsOkAndHolds(Path("run/checkpoints/step-000016")));
  EXPECT_THAT(FindModelDir(Path("run/checkpoints/step-000016")),
              IsOkAndHolds(Path("run/checkpoints/step-000016")));
  ASSERT_OK(MakeDirectories(Path("empty")));
  EXPECT_THAT(FindModelDir(Path("empty")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("neither a run")));
}

}  // namespace
}  // namespace millrace
