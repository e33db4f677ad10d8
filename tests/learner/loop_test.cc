#include "learner/loop.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/learner/tiny_run.h"

namespace millrace {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::OrThrow;
using testing::RandomBatch;
namespace fs = std::filesystem;

// The world outside the learner: a buffer with canned batches, a publisher that always reaches its
// member, evaluations that are right more often with every version.
class FakeWorld {
 public:
  LearnerPorts Ports() {
    LearnerPorts ports;
    ports.next_batch = [this](uint64_t step, int64_t,
                              absl::Duration wait) -> absl::StatusOr<Batch> {
      longest_wait = std::max(longest_wait, wait);
      if (step == fail_at) return absl::UnavailableError("the buffer is gone");
      if (step == starve_at) return absl::DeadlineExceededError("0 of 3 groups are ready");
      if (step == stop_at) stopping = true;
      Batch batch = RandomBatch(step, 3, 4, 100 * step);
      batch.step = step;
      batch.dropped["degenerate"] = 1;
      for (BatchGroup& group : batch.groups) {
        for (Trajectory& t : group.trajectories) {
          for (size_t i = 0; i < t.logprobs.size(); ++i) t.logprobs[i] = t.loss_mask[i] ? -5 : 0;
        }
      }
      return batch;
    };
    ports.commit = [this](uint64_t step, const std::string&) {
      committed.push_back(step);
      return absl::OkStatus();
    };
    ports.rewind = [this](uint64_t step) -> absl::StatusOr<RewindResult> {
      rewound.push_back(step);
      return RewindResult{0, 0, versions.empty() ? -1 : versions.back()};
    };
    ports.set_version = [this](int64_t version, bool done) {
      if (!done) versions.push_back(version);
      finished = done;
      return absl::OkStatus();
    };
    ports.stats = [] {
      BufferStats stats;
      stats.generated_tokens = 1234;
      stats.dropped_groups["degenerate"] = 4;
      return absl::StatusOr<BufferStats>(stats);
    };
    ports.publish = [this](int64_t version, absl::Span<const NamedSpan> tensors) {
      published.push_back(version);
      tensors_published = tensors.size();
      if (version == die_publishing) return absl::AbortedError("died while publishing");
      return absl::OkStatus();
    };
    ports.wait_activated = [this](int64_t, int, absl::Duration wait) {
      longest_wait = std::max(longest_wait, wait);
      return absl::OkStatus();
    };
    ports.finish = [this] { told_members = true; };
    ports.evaluate = [this](const EvalRequest& request) -> absl::StatusOr<EvalOutcome> {
      EvalOutcome outcome;
      outcome.request = request;
      outcome.version = request.version;
      outcome.samples = request.problems * request.samples;
      outcome.correct = request.step;
      outcome.accuracy = static_cast<double>(request.step) / 10;
      outcome.has_baseline = true;
      outcome.baseline_correct = 3;
      evaluations.push_back(absl::StrCat(request.kind, " ", request.mode));
      return outcome;
    };
    ports.stopping = [this] { return stopping; };
    ports.event = [this](const std::string& event, const std::string& fields) {
      events.push_back(event + " " + fields);
    };
    return ports;
  }

  uint64_t fail_at = 0, starve_at = 0, stop_at = 0;  // steps; 0 = never
  int64_t die_publishing = -1;  // version that members get, but whose Publish fails
  bool stopping = false, finished = false, told_members = false;
  std::vector<uint64_t> committed, rewound;
  std::vector<int64_t> versions, published;
  std::vector<std::string> evaluations, events;
  size_t tensors_published = 0;
  absl::Duration longest_wait;  // in one call that does not ask stopping()
};

class LoopTest : public ::testing::Test {
 protected:
  LoopTest() {
    dir_ = fs::path(::testing::TempDir()) /
           absl::StrCat("loop-", getpid(), "-",
                        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(dir_);
    config_.run.name = "canned";
    config_.run.steps = 5;
    config_.model.hidden_size = 32;
    config_.model.layers = 1;
    config_.model.heads = 2;
    config_.model.kv_heads = 1;
    config_.model.head_dim = 16;
    config_.model.intermediate_size = 32;
    config_.model.max_position = 128;
    config_.task.name = "sums";
    config_.learner.lr = 1e-3;
    config_.learner.checkpoint_every = 2;
    config_.learner.self_check_tolerance = 0;  // canned logprobs
    config_.eval.problems = 10;
    config_.eval.samples = 2;
    config_.rollout.max_new_tokens = 8;
    config_.buffer.batch_wait_seconds = 0.01;
  }
  ~LoopTest() override { fs::remove_all(dir_); }

  absl::Status Run(FakeWorld& world, const std::string& name = "run") {
    const fs::path dir = dir_ / name;
    fs::create_directories(dir);
    Metrics metrics({{"role", "learner"}});
    LearnerLoop loop(config_, dir.string(), &metrics, world.Ports());
    absl::Status status = loop.Run();
    scrape_ = metrics.Serialize();
    return status;
  }
  std::vector<json> Lines(const std::string& file, const std::string& name = "run") {
    std::vector<json> lines;
    std::ifstream in(dir_ / name / file);
    for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
    return lines;
  }
  std::vector<double> Losses(const std::string& name) {
    std::vector<double> losses;
    for (const json& line : Lines("metrics.jsonl", name)) losses.push_back(line["loss"]);
    return losses;
  }

  fs::path dir_;
  RunConfig config_;
  std::string scrape_;
};

TEST_F(LoopTest, PublishesTrainsCommitsAndSumsUp) {
  FakeWorld world;
  ASSERT_TRUE(Run(world).ok());
  EXPECT_THAT(world.published, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(world.versions, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(world.committed, ElementsAre(2, 4, 5));
  EXPECT_THAT(world.evaluations,
              ElementsAre("before sampled", "before greedy", "after sampled", "after greedy"));
  EXPECT_GT(world.tensors_published, 5u);
  EXPECT_TRUE(world.finished);
  EXPECT_TRUE(world.told_members);
  const std::vector<json> lines = Lines("metrics.jsonl");
  ASSERT_EQ(lines.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(lines[i]["step"], i + 1);
    EXPECT_EQ(lines[i]["version"], i + 1);
    EXPECT_EQ(lines[i]["group_ids"][0], 100 * (i + 1));
    EXPECT_EQ(lines[i]["dropped"]["degenerate"], 1);
    for (const char* part : {"wait_batch", "train", "publish", "checkpoint", "total"}) {
      EXPECT_TRUE(lines[i]["seconds"].contains(part)) << part;
    }
  }
  const json summary = json::parse(std::ifstream(dir_ / "run" / "summary.json"));
  EXPECT_EQ(summary["steps"], 5);
  EXPECT_EQ(summary["versions"], 6);
  EXPECT_EQ(summary["before"]["sampled"]["samples"], 20);
  EXPECT_EQ(summary["after"]["greedy"]["correct"], 5);
  EXPECT_EQ(summary["baseline"]["correct"], 3);
  EXPECT_EQ(summary["groups_trained"], 15);
  EXPECT_EQ(summary["generated_tokens"], 1234);
  EXPECT_EQ(summary["dropped_groups"]["degenerate"], 4);
  EXPECT_TRUE(fs::exists(dir_ / "run" / "checkpoints" / "step-000005" / "model.safetensors"));
  EXPECT_THAT(scrape_, HasSubstr("millrace_learner_staleness_versions_bucket"));
  EXPECT_THAT(scrape_, HasSubstr("millrace_learner_reward_mean"));
}

TEST_F(LoopTest, TheEntropyOnTheMetricsPageIsThatOfMetricsJsonl) {
  config_.run.steps = 1;
  config_.learner.updates_per_batch = 3;
  FakeWorld world;
  ASSERT_TRUE(Run(world).ok());
  const std::string name = "\nmillrace_learner_entropy_nats{role=\"learner\"} ";
  const size_t at = scrape_.find(name);
  ASSERT_NE(at, std::string::npos) << scrape_;
  // Of the policy that the batch met, not of what two updates made of it.
  EXPECT_NEAR(std::stod(scrape_.substr(at + name.size())), Lines("metrics.jsonl")[0]["entropy"],
              1e-9);
}

TEST_F(LoopTest, ResumesFromItsCheckpointWithTheLossesOfTheRunThatNeverStopped) {
  FakeWorld whole;
  ASSERT_TRUE(Run(whole, "whole").ok());
  FakeWorld world;
  world.fail_at = 4;
  const absl::Status status = Run(world);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the buffer is gone"));
  EXPECT_FALSE(world.finished);
  EXPECT_THAT(world.committed, ElementsAre(2, 3));
  // What a process that was killed later might have left behind.
  std::ofstream(dir_ / "run" / "metrics.jsonl", std::ios::app)
      << "{\"step\": 4, \"loss\": 7}\n7\n{\"step\": 5, \"lo";
  world.fail_at = 0;
  ASSERT_TRUE(Run(world).ok());
  EXPECT_THAT(world.rewound, ElementsAre(0, 3));
  EXPECT_THAT(world.published, ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_EQ(Losses("run"), Losses("whole"));
  EXPECT_THAT(world.evaluations,
              ElementsAre("before sampled", "before greedy", "after sampled", "after greedy"));
}

TEST_F(LoopTest, AVersionThatMembersMayHaveIsNeverGivenToOtherWeights) {
  for (const int64_t version : {0, 3}) {
    SCOPED_TRACE(version);
    const std::string name = absl::StrCat("died-", version);
    FakeWorld world;
    world.die_publishing = version;
    EXPECT_FALSE(Run(world, name).ok());
    world.die_publishing = -1;
    ASSERT_TRUE(Run(world, name).ok());
    EXPECT_EQ(std::set<int64_t>(world.published.begin(), world.published.end()).size(),
              world.published.size())
        << ::testing::PrintToString(world.published);
  }
}

TEST_F(LoopTest, AStepThatWasTrainedButNotPublishedIsNotTrainedOnTopOfItself) {
  FakeWorld whole;
  ASSERT_TRUE(Run(whole, "whole").ok());
  FakeWorld world;
  world.die_publishing = 4;  // after the update of step 4; step 3 has no checkpoint yet
  EXPECT_FALSE(Run(world).ok());
  world.die_publishing = -1;
  ASSERT_TRUE(Run(world).ok());
  EXPECT_EQ(Losses("run"), Losses("whole"));
}

TEST_F(LoopTest, SavesWhatItLearnedWhenToldToStop) {
  FakeWorld world;
  world.stop_at = 3;
  ASSERT_TRUE(Run(world).ok());
  EXPECT_FALSE(world.finished);
  EXPECT_THAT(world.committed, ElementsAre(2, 3));
  EXPECT_FALSE(fs::exists(dir_ / "run" / "summary.json"));
}

TEST_F(LoopTest, NoWaitIsLongerThanTheTimeThatAStopMayTake) {
  config_.buffer.batch_wait_seconds = 600;
  FakeWorld world;
  ASSERT_TRUE(Run(world).ok());
  EXPECT_GT(world.longest_wait, absl::ZeroDuration());
  EXPECT_LE(world.longest_wait, absl::Milliseconds(200));
}

TEST_F(LoopTest, SaysWhatItWaitedForWhenNoBatchComes) {
  FakeWorld world;
  world.starve_at = 2;
  const absl::Status status = Run(world);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("batch of step 2"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("0 of 3 groups are ready"));
}

TEST_F(LoopTest, EvaluatesNowAndThenWithoutWaiting) {
  config_.eval.every = 2;
  config_.eval.problems = 0;
  FakeWorld world;
  ASSERT_TRUE(Run(world).ok());
  ASSERT_FALSE(world.evaluations.empty());
  EXPECT_EQ(world.evaluations[0], "periodic sampled");
  EXPECT_EQ(Lines("eval.jsonl")[0]["kind"], "periodic");
}

TEST_F(LoopTest, WarmsUpBeforeTheFirstVersionAndNotAgainWhenResumed) {
  config_.sft.steps = 3;
  config_.sft.batch_size = 4;
  config_.sft.eval_every = 2;
  config_.learner.kl_beta = 0.1;
  config_.run.steps = 2;
  FakeWorld world;
  world.fail_at = 1;
  EXPECT_FALSE(Run(world).ok());
  std::vector<json> lines = Lines("metrics.jsonl");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["phase"], "sft");
  EXPECT_LT(lines[2]["loss"], lines[0]["loss"]);
  world.fail_at = 0;
  ASSERT_TRUE(Run(world).ok());
  lines = Lines("metrics.jsonl");
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[3]["phase"], "grpo");
  EXPECT_NEAR(lines[3]["kl"], 0, 1e-6);
  EXPECT_GT(lines[4]["kl"], 0);
  const json summary = json::parse(std::ifstream(dir_ / "run" / "summary.json"));
  EXPECT_EQ(summary["sft"]["steps"], 3);
}

}  // namespace
}  // namespace millrace
