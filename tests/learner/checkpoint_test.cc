#include "learner/checkpoint.h"

#include <ATen/ATen.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/safetensors.h"
#include "tests/learner/tiny_run.h"

namespace millrace {
namespace {

using testing::FillLogprobs;
using ::testing::HasSubstr;
using testing::OrThrow;
using testing::RandomBatch;
using testing::TinyModel;
using testing::TinyOptions;
namespace fs = std::filesystem;

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    dir_ = fs::path(::testing::TempDir()) /
           ("checkpoints-" + std::to_string(getpid()) + "-" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  ~CheckpointTest() override { fs::remove_all(dir_); }

  Checkpointer::Options Options() {
    Checkpointer::Options options;
    options.dir = dir_.string();
    options.on_durable = [this](int64_t step, const std::string& name) {
      // By now the checkpoint is what `latest` names.
      EXPECT_EQ(OrThrow(FindLatestCheckpoint(dir_.string())), (dir_ / name).string());
      committed_.push_back(step);
      return absl::OkStatus();
    };
    return options;
  }
  TrainerState State(int64_t step) {
    TrainerState state;
    state.step = step;
    state.version = step + 10;
    state.config_digest = "abc";
    state.seconds = {{"train", 1.5}};
    state.dropped = {{"degenerate", 3}};
    return state;
  }
  static std::unique_ptr<AdamW> NewAdam(Transformer* model) {
    return OrThrow(
        AdamW::Create(model->flat_parameters(), model->flat_gradients(), DecayRanges(*model), {}));
  }
  std::vector<std::string> Names() { return NamesIn(dir_); }
  static std::vector<std::string> NamesIn(const fs::path& dir) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  fs::path dir_;
  std::vector<int64_t> committed_;
  std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::Bytes();
};

TEST_F(CheckpointTest, ResumesToTheSameBitsAsTheRunThatNeverStopped) {
  std::vector<Batch> batches;
  for (uint64_t i = 0; i < 6; ++i) batches.push_back(RandomBatch(30 + i));
  TrainerOptions options = TinyOptions();
  options.self_check_tolerance = 0;
  options.schedule.kind = ScheduleKind::kCosine;
  options.schedule.total = 6;
  options.optimizer.weight_decay = 0.1;
  auto whole = TinyModel();
  for (Batch& batch : batches) FillLogprobs(*whole, &batch);
  auto trainer = OrThrow(Trainer::Create(whole.get(), nullptr, options));
  std::vector<double> losses;
  Checkpointer checkpointer(Options());
  for (size_t i = 0; i < 6; ++i) {
    losses.push_back(OrThrow(trainer->Step(batches[i], 0)).updates[0].loss);
    if (i != 2) continue;
    TrainerState state = State(3);
    state.schedule_updates = trainer->schedule_updates();
    ASSERT_TRUE(
        checkpointer.Save(*whole, *tokenizer_, &trainer->optimizer(), std::move(state)).ok());
  }
  ASSERT_TRUE(checkpointer.Wait().ok());

  const std::string path = *OrThrow(FindLatestCheckpoint(dir_.string()));
  const TrainerState state = OrThrow(ReadTrainerState(path));
  auto model = OrThrow(Transformer::Load(path, at::kCPU));
  auto resumed = OrThrow(Trainer::Create(model.get(), nullptr, options));
  resumed->Restore(state.schedule_updates, state.skipped_updates);
  ASSERT_TRUE(RestoreOptimizer(path, *model, state, &resumed->optimizer()).ok());
  for (size_t i = 3; i < 6; ++i) {
    EXPECT_EQ(OrThrow(resumed->Step(batches[i], 0)).updates[0].loss, losses[i]) << i;
  }
  EXPECT_TRUE(at::equal(model->flat_parameters(), whole->flat_parameters()));
}

TEST_F(CheckpointTest, ASnapshotThatSharesMemoryIsWrittenFromTheLiveWeights) {
  auto model = TinyModel();
  auto shared = OrThrow(model->Share());
  EXPECT_EQ(shared->flat_parameters().data_ptr(), model->flat_parameters().data_ptr());
  auto adam = OrThrow(
      AdamW::Create(model->flat_parameters(), model->flat_gradients(), DecayRanges(*model), {}));
  Checkpointer checkpointer(Options());
  auto snapshot = OrThrow(
      checkpointer.Take({*model, *tokenizer_, adam.get(), Checkpointer::Memory::kShare}, State(7)));
  model->flat_parameters().fill_(0.25);  // before the write: seen by it
  checkpointer.Write(std::move(snapshot));
  ASSERT_TRUE(checkpointer.Wait().ok());
  auto saved = OrThrow(Transformer::Load(*OrThrow(FindLatestCheckpoint(dir_.string())), at::kCPU));
  EXPECT_TRUE(at::equal(saved->flat_parameters(), model->flat_parameters()));
}

TEST_F(CheckpointTest, KeepsTheNewestInHuggingFaceLayoutAndCommitsEach) {
  auto model = TinyModel();
  auto adam = OrThrow(
      AdamW::Create(model->flat_parameters(), model->flat_gradients(), DecayRanges(*model), {}));
  {
    Checkpointer checkpointer(Options());
    for (int64_t step : {2, 4, 6}) {
      ASSERT_TRUE(checkpointer.Save(*model, *tokenizer_, adam.get(), State(step)).ok());
    }
    ASSERT_TRUE(checkpointer.Wait().ok());
  }
  EXPECT_THAT(Names(), ::testing::ElementsAre("latest", "step-000004", "step-000006"));
  EXPECT_THAT(committed_, ::testing::ElementsAre(2, 4, 6));
  for (const char* file :
       {"config.json", "model.safetensors", "tokenizer.json", "trainer.json", "optimizer.state"}) {
    EXPECT_TRUE(fs::exists(dir_ / "step-000006" / file)) << file;
  }
  auto reader =
      OrThrow(SafetensorsReader::Open((dir_ / "step-000006" / "model.safetensors").string()));
  EXPECT_EQ(OrThrow(reader.Get("model.embed_tokens.weight")).dtype, "F32");
  const TrainerState state = OrThrow(ReadTrainerState((dir_ / "step-000006").string()));
  EXPECT_EQ(state.version, 16);
  EXPECT_EQ(state.dropped.at("degenerate"), 3u);
}

// Servers read every *.safetensors of a model's folder as its weights, and fail on other tensors.
TEST_F(CheckpointTest, TheModelsWeightsAreTheOnlySafetensorsOfACheckpoint) {
  auto model = TinyModel();
  auto adam = NewAdam(model.get());
  Checkpointer checkpointer(Options());
  ASSERT_TRUE(checkpointer.Save(*model, *tokenizer_, adam.get(), State(1)).ok());
  ASSERT_TRUE(checkpointer.Wait().ok());
  std::vector<std::string> weights;
  for (const std::string& name : NamesIn(dir_ / "step-000001")) {
    if (fs::path(name).extension() == ".safetensors") weights.push_back(name);
  }
  EXPECT_THAT(weights, ::testing::ElementsAre("model.safetensors"));
}

TEST_F(CheckpointTest, MomentsAreReadUnderTheNameThatEarlierCheckpointsGaveThem) {
  auto model = TinyModel();
  auto adam = NewAdam(model.get());
  model->flat_gradients().fill_(0.5);
  ASSERT_TRUE(OrThrow(adam->Step(1e-3)).applied);
  Checkpointer checkpointer(Options());
  ASSERT_TRUE(checkpointer.Save(*model, *tokenizer_, adam.get(), State(1)).ok());
  ASSERT_TRUE(checkpointer.Wait().ok());
  const fs::path path = dir_ / "step-000001";
  fs::rename(path / "optimizer.state", path / "optimizer.safetensors");
  auto resumed = NewAdam(model.get());
  const TrainerState state = OrThrow(ReadTrainerState(path.string()));
  const absl::Status status = RestoreOptimizer(path.string(), *model, state, resumed.get());
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(resumed->updates(), 1);
  EXPECT_TRUE(at::equal(resumed->first_moment(), adam->first_moment()));
  EXPECT_TRUE(at::equal(resumed->second_moment(), adam->second_moment()));
}

TEST_F(CheckpointTest, TheNewestIsThatOfTheHighestStepHoweverManyDigitsItHas) {
  auto model = TinyModel();
  {
    Checkpointer checkpointer(Options());
    for (int64_t step : {999998, 999999, 1000000, 1000001}) {
      ASSERT_TRUE(checkpointer.Save(*model, *tokenizer_, nullptr, State(step)).ok());
    }
    ASSERT_TRUE(checkpointer.Wait().ok());
  }
  EXPECT_THAT(Names(), ::testing::ElementsAre("latest", "step-1000000", "step-1000001"));
  fs::remove(dir_ / "latest");
  EXPECT_EQ(OrThrow(FindLatestCheckpoint(dir_.string())), (dir_ / "step-1000001").string());
}

TEST_F(CheckpointTest, WhatAKilledWriterLeftGoesWithTheNextOne) {
  // Of steps that this life never writes.
  for (const char* left : {".part-step-000017", ".part-step-000012.old"}) {
    fs::create_directories(dir_ / left);
    std::ofstream(dir_ / left / "model.safetensors") << "half";
  }
  auto model = TinyModel();
  Checkpointer checkpointer(Options());
  ASSERT_TRUE(checkpointer.Save(*model, *tokenizer_, nullptr, State(20)).ok());
  ASSERT_TRUE(checkpointer.Wait().ok());
  EXPECT_THAT(Names(), ::testing::ElementsAre("latest", "step-000020"));
}

TEST_F(CheckpointTest, IsASnapshotThatLaterUpdatesDoNotReach) {
  auto model = TinyModel();
  const at::Tensor before = model->flat_parameters().clone();
  Checkpointer checkpointer(Options());
  ASSERT_TRUE(checkpointer.Save(*model, *tokenizer_, nullptr, State(1)).ok());
  model->flat_parameters().add_(1);
  ASSERT_TRUE(checkpointer.Wait().ok());
  auto saved = OrThrow(Transformer::Load((dir_ / "step-000001").string(), at::kCPU));
  EXPECT_TRUE(at::equal(saved->flat_parameters(), before));
}

TEST_F(CheckpointTest, AFullDiskIsAnErrorThatLeavesTheLastCheckpointWhole) {
  auto model = TinyModel();
  Checkpointer checkpointer(Options());
  ASSERT_TRUE(checkpointer.Save(*model, *tokenizer_, nullptr, State(1)).ok());
  ASSERT_TRUE(checkpointer.Wait().ok());
  // Writes beyond 4 KiB fail from here on.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  rlimit small = old;
  small.rlim_cur = 4096;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  ASSERT_TRUE(checkpointer.Save(*model, *tokenizer_, nullptr, State(2)).ok());
  const absl::Status status = checkpointer.Wait();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("step-000002"));
  EXPECT_THAT(Names(), ::testing::ElementsAre("latest", "step-000001"));
  EXPECT_EQ(OrThrow(FindLatestCheckpoint(dir_.string())), (dir_ / "step-000001").string());
  EXPECT_THAT(committed_, ::testing::ElementsAre(1));
  EXPECT_TRUE(Transformer::Load((dir_ / "step-000001").string(), at::kCPU).ok());
  // The error was told once; there is room again.
  ASSERT_TRUE(checkpointer.Save(*model, *tokenizer_, nullptr, State(3)).ok());
  EXPECT_TRUE(checkpointer.Wait().ok());
}

TEST_F(CheckpointTest, FindsTheNewestWholeOneWhenLatestIsDamaged) {
  EXPECT_EQ(OrThrow(FindLatestCheckpoint(dir_.string())), std::nullopt);
  EXPECT_EQ(OrThrow(FindLatestCheckpoint((dir_ / "absent").string())), std::nullopt);
  auto model = TinyModel();
  {
    Checkpointer checkpointer(Options());
    ASSERT_TRUE(checkpointer.Save(*model, *tokenizer_, nullptr, State(1)).ok());
    ASSERT_TRUE(checkpointer.Wait().ok());
  }
  fs::create_directories(dir_ / "step-000009");  // without trainer.json it is not whole
  std::ofstream(dir_ / "latest") << "step-000009\n";
  EXPECT_EQ(OrThrow(FindLatestCheckpoint(dir_.string())), (dir_ / "step-000001").string());
}

TEST_F(CheckpointTest, RefusesMomentsWithAWrongDigestAndADamagedTrainerJson) {
  auto model = TinyModel();
  auto adam = OrThrow(
      AdamW::Create(model->flat_parameters(), model->flat_gradients(), DecayRanges(*model), {}));
  {
    Checkpointer checkpointer(Options());
    ASSERT_TRUE(checkpointer.Save(*model, *tokenizer_, adam.get(), State(1)).ok());
    ASSERT_TRUE(checkpointer.Wait().ok());
  }
  const fs::path path = dir_ / "step-000001";
  const TrainerState state = OrThrow(ReadTrainerState(path.string()));
  {
    std::fstream file(path / "optimizer.state", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-4, std::ios::end);
    file.write("abcd", 4);
  }
  const absl::Status status = RestoreOptimizer(path.string(), *model, state, adam.get());
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  std::ofstream(path / "trainer.json") << "{\"format\": 1, \"step\":";
  EXPECT_EQ(ReadTrainerState(path.string()).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace millrace
