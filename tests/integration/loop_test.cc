// The whole loop with real processes on a very small model.
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_harness.h"

namespace millrace::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Key;

TEST(LoopTest, TrainsToTheEndAndLeavesAWholeRunDirectory) {
  TrainRun run;
  run.Start();
  const auto code = run.WaitForEnd();
  ASSERT_TRUE(code.ok()) << code.status() << run.Output();
  ASSERT_EQ(*code, 0) << run.Output();
  ExpectExactlyOnce(run, 12);

  const nlohmann::json summary = run.Summary();
  ASSERT_FALSE(summary.is_discarded());
  EXPECT_EQ(summary["steps"], 12);
  for (const char* when : {"before", "after"}) {
    const auto& sampled = summary[when]["sampled"];
    EXPECT_EQ(sampled["problems"], 8) << when;
    EXPECT_LE(sampled["low"].get<double>(), sampled["accuracy"].get<double>()) << when;
    EXPECT_GE(sampled["high"].get<double>(), sampled["accuracy"].get<double>()) << when;
  }
  EXPECT_GT(summary["generated_tokens"].get<int64_t>(), 0);
  EXPECT_GT(summary["trained_tokens"].get<int64_t>(), 0);
  for (const char* process : {"buffer", "learner", "rollout-0", "rollout-1"}) {
    EXPECT_GT(summary["peak_memory_bytes"].value(process, int64_t{0}), 0) << process;
  }
  for (const char* file :
       {"config.toml", "metrics.jsonl", "eval.jsonl", "events.jsonl", "buffer.sqlite",
        "checkpoints/latest", "checkpoints/step-000012/config.json",
        "checkpoints/step-000012/model.safetensors", "checkpoints/step-000012/tokenizer.json"}) {
    EXPECT_TRUE(fs::exists(run.dir() + "/" + file)) << file;
  }
  // Both servers took part, and the numbers of sampler and learner agree.
  const StoreAudit audit = run.Audit();
  EXPECT_THAT(audit.trajectories_by_server, Contains(Key("rollout-0")));
  EXPECT_THAT(audit.trajectories_by_server, Contains(Key("rollout-1")));
  for (const auto& row : run.Metrics()) {
    if (row["step"] == 1) {
      EXPECT_LT(row["logprob_diff_max"].get<double>(), 1e-4);
    }
    EXPECT_LE(row["staleness_max"].get<double>(), 4) << row["step"];
  }
  EXPECT_THAT(run.Output(), HasSubstr("millrace chat"));
  // The result can be talked to.
  const CommandResult chat = RunCommand({Program("millrace"), "chat", run.dir(), "--once", "1+2="});
  EXPECT_EQ(chat.exit_code, 0) << chat.output;
}

TEST(LoopTest, WithNoLeadEveryBatchIsOnPolicy) {
  TrainRun run({"buffer.version_lead=0", "run.steps=6", "eval.problems=0"});
  run.Start();
  const auto code = run.WaitForEnd();
  ASSERT_TRUE(code.ok() && *code == 0) << run.Output();
  for (const auto& row : run.Metrics())
    EXPECT_EQ(row["staleness_max"].get<double>(), 0) << row["step"];
  EXPECT_EQ(run.Metrics().size(), 6u);
}

TEST(LoopTest, ALateRolloutServerGetsTheNewestVersionAndTakesPart) {
  TrainRun run({"run.steps=40", "rollout.servers=1"});
  run.Start();
  ASSERT_TRUE(run.WaitForStep(3).ok()) << run.Output();
  const auto buffer = run.Endpoint("buffer"), learner = run.Endpoint("learner");
  ASSERT_TRUE(buffer.ok() && learner.ok());
  // On a busy machine the run would be over before the late one is up.
  ASSERT_TRUE(run.Signal("rollout-0", SIGSTOP).ok());
  ChildProcess late;
  late.Start(
      {Program("millrace-rollout"), "--config", run.dir() + "/config.toml", "--run-dir", run.dir(),
       "--name", "rollout-late", "--buffer", (*buffer)["address"], "--sync", (*learner)["address"]},
      run.dir() + "/late.log");
  ASSERT_TRUE(
      run.WaitFor("a trajectory of rollout-late",
                  [&] { return run.Audit().trajectories_by_server.contains("rollout-late"); })
          .ok())
      << ReadWhole(run.dir() + "/late.log");
  ASSERT_TRUE(run.Signal("rollout-0", SIGCONT).ok());
  const auto code = run.WaitForEnd();
  ASSERT_TRUE(code.ok() && *code == 0) << run.Output();
  ExpectExactlyOnce(run, 40);
  const auto late_code = late.Wait(absl::Seconds(60));  // the run is finished, so it ends by itself
  ASSERT_TRUE(late_code.ok()) << late_code.status();
  EXPECT_EQ(*late_code, 0) << ReadWhole(run.dir() + "/late.log");
}

}  // namespace
}  // namespace millrace::testing
