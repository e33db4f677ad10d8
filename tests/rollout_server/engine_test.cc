#include "rollout_server/engine.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "tests/model/golden_model.h"
#include "tests/testing/status_matchers.h"

namespace millrace::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Tokens = std::vector<int32_t>;

constexpr absl::Duration kPatience = absl::Minutes(2);

// Samples of several requests as they end, by request name.
class Collector {
 public:
  std::function<void(GeneratedSample)> For(const std::string& name) {
    return [this, name](GeneratedSample sample) {
      absl::MutexLock lock(&mu_);
      order_.push_back(name);
      samples_[name].push_back(std::move(sample));
      ++count_;
    };
  }
  bool Await(int64_t count) {
    absl::MutexLock lock(&mu_);
    const auto enough = [&] { return count_ >= count; };
    return mu_.AwaitWithTimeout(absl::Condition(&enough), kPatience);
  }
  std::vector<GeneratedSample> Of(const std::string& name) {
    absl::MutexLock lock(&mu_);
    return samples_[name];
  }
  std::vector<std::string> order() {
    absl::MutexLock lock(&mu_);
    return order_;
  }

 private:
  absl::Mutex mu_;
  std::map<std::string, std::vector<GeneratedSample>> samples_;
  std::vector<std::string> order_;
  int64_t count_ = 0;
};

std::unique_ptr<Engine> StartEngine(std::unique_ptr<Transformer> model,
                                    Engine::Options options = {}, Metrics* metrics = nullptr) {
  auto engine = Engine::Start(std::move(model), options, metrics);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

std::unique_ptr<Engine> StartSmall(Engine::Options options = {}) {
  return StartEngine(MakeModel(SmallConfig("qwen3"), Path::kFused), options);
}

EngineRequest MakeRequest(Tokens prompt, std::vector<uint32_t> indices, int32_t max_new,
                          std::function<void(GeneratedSample)> on_sample) {
  EngineRequest request;
  request.prompt = std::move(prompt);
  request.indices = std::move(indices);
  request.max_new_tokens = max_new;
  request.on_sample = std::move(on_sample);
  return request;
}

absl::Status KeepWeights(Transformer&) { return absl::OkStatus(); }

TEST(EngineTest, GreedyTokensAndLogprobsEqualTheGoldenOnes) {
  for (const char* name : {"llama_untied", "qwen2_tied", "qwen3_tied", "qwen3_untied"}) {
    SCOPED_TRACE(name);
    const nlohmann::json greedy = ReadGoldenCase(name).json["greedy"];
    const auto prompts = greedy["prompts"].get<std::vector<Tokens>>();
    const auto expected = greedy["new_tokens"].get<std::vector<Tokens>>();
    const auto logprobs = greedy["logprobs"].get<std::vector<std::vector<double>>>();
    Collector collector;
    auto engine = StartEngine(LoadGolden(name, Path::kFused));
    engine->SetVersion(0);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EngineRequest request = MakeRequest(prompts[i], {0}, 32, collector.For(std::to_string(i)));
      request.sampling.temperature = 0;
      ASSERT_OK(engine->Submit(request));
    }
    ASSERT_TRUE(collector.Await(static_cast<int64_t>(prompts.size())));
    for (size_t i = 0; i < prompts.size(); ++i) {
      const GeneratedSample sample = collector.Of(std::to_string(i))[0];
      EXPECT_EQ(sample.token_ids, expected[i]);
      EXPECT_EQ(sample.reason, FinishReason::kLength);
      for (size_t t = 0; t < logprobs[i].size(); ++t) {
        ASSERT_NEAR(sample.logprobs[t], logprobs[i][t], 1e-4) << "prompt " << i << " token " << t;
      }
    }
  }
}

TEST(EngineTest, AStopTokenEndsTheSampleAndIsKept) {
  for (const char* name : {"llama_untied", "qwen2_tied", "qwen3_tied", "qwen3_untied"}) {
    SCOPED_TRACE(name);
    const nlohmann::json greedy = ReadGoldenCase(name).json["greedy"];
    const auto prompts = greedy["prompts"].get<std::vector<Tokens>>();
    const auto expected = greedy["eos_case"]["new_tokens"].get<std::vector<Tokens>>();
    const int32_t eos = greedy["eos_case"]["eos_token_id"].get<int32_t>();
    Collector collector;
    auto engine = StartEngine(LoadGolden(name, Path::kFused));
    engine->SetVersion(0);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EngineRequest request = MakeRequest(prompts[i], {0}, 32, collector.For(std::to_string(i)));
      request.sampling.temperature = 0;
      request.stop_ids = {eos};
      ASSERT_OK(engine->Submit(request));
    }
    ASSERT_TRUE(collector.Await(static_cast<int64_t>(prompts.size())));
    for (size_t i = 0; i < prompts.size(); ++i) {
      const GeneratedSample sample = collector.Of(std::to_string(i))[0];
      EXPECT_EQ(sample.token_ids, expected[i]);
      const bool stopped = expected[i].back() == eos;
      EXPECT_EQ(sample.reason, stopped ? FinishReason::kStop : FinishReason::kLength);
    }
  }
}

TEST(EngineTest, TheStopCallbackSeesTheTokensSoFar) {
  auto engine = StartSmall();
  engine->SetVersion(0);
  Collector collector;
  std::vector<size_t> seen;
  EngineRequest request = MakeRequest({1, 2}, {0}, 50, collector.For("a"));
  request.stop = [&](absl::Span<const int32_t> tokens) {
    seen.push_back(tokens.size());
    return tokens.size() == 4;
  };
  ASSERT_OK(engine->Submit(request));
  ASSERT_TRUE(collector.Await(1));
  EXPECT_THAT(seen, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(collector.Of("a")[0].token_ids.size(), 4u);
  EXPECT_EQ(collector.Of("a")[0].reason, FinishReason::kStop);
}

TEST(EngineTest, MoreSamplesThanFitAreAllServedHigherPriorityFirst) {
  Engine::Options options;
  options.max_batch = 2;
  options.kv_tokens = 64;
  auto engine = StartSmall(options);
  Collector collector;
  ASSERT_OK(engine->Submit(MakeRequest({1, 2, 3}, {0, 1, 2, 3, 4}, 20, collector.For("train"))));
  EngineRequest urgent = MakeRequest({1, 2, 3}, {0, 1}, 20, collector.For("eval"));
  urgent.priority = 1;
  ASSERT_OK(engine->Submit(urgent));
  EXPECT_EQ(engine->stats().waiting, 7);
  engine->SetVersion(0);
  ASSERT_TRUE(collector.Await(7));
  EXPECT_THAT(collector.order(),
              ElementsAre("eval", "eval", "train", "train", "train", "train", "train"));
  engine->SetVersion(1);  // comes after the step that ended the last sample, and its statistics
  EXPECT_EQ(engine->stats().generated_tokens, 140u);
}

TEST(EngineTest, WeightsChangeWhileSamplesRun) {
  auto engine = StartSmall();
  engine->SetVersion(0);
  // The change races with the end of the samples; it comes in mid-sample nearly every time.
  bool seen = false;
  for (int64_t version = 1; version <= 200 && !seen; ++version) {
    Collector collector;
    absl::Notification running;
    EngineRequest request = MakeRequest({1, 2, 3}, {0, 1}, 120, collector.For("a"));
    request.stop = [&](absl::Span<const int32_t> tokens) {
      if (tokens.size() == 5 && !running.HasBeenNotified()) running.Notify();
      return false;
    };
    ASSERT_OK(engine->Submit(request));
    ASSERT_TRUE(running.WaitForNotificationWithTimeout(kPatience));
    ASSERT_OK(engine->SwapWeights(version, KeepWeights, absl::Now() + kPatience));
    EXPECT_EQ(engine->version(), version);
    ASSERT_TRUE(collector.Await(2));
    for (const GeneratedSample& sample : collector.Of("a")) {
      EXPECT_EQ(sample.versions.front().version, version - 1);
      EXPECT_EQ(sample.versions.back().end, 120u);
      if (sample.versions.size() < 2) continue;
      seen = true;
      EXPECT_GE(sample.versions[0].end, 5u);
      EXPECT_EQ(sample.versions[0].end, sample.versions[1].begin);
      EXPECT_EQ(sample.versions[1].version, version);
    }
  }
  EXPECT_TRUE(seen);
}

TEST(EngineTest, DrainLetsRunningSamplesEndUnderTheOldWeightsAndHoldsNewOnesBack) {
  Engine::Options options;
  options.swap_mode = SwapMode::kDrain;
  options.max_batch = 1;
  auto engine = StartSmall(options);
  engine->SetVersion(0);
  Collector collector;
  absl::Notification running, go_on;
  EngineRequest request = MakeRequest({1, 2, 3}, {0}, 20, collector.For("old"));
  request.stop = [&](absl::Span<const int32_t> tokens) {
    if (tokens.size() == 1) {
      running.Notify();
      go_on.WaitForNotificationWithTimeout(kPatience);
    }
    return false;
  };
  ASSERT_OK(engine->Submit(request));
  ASSERT_OK(engine->Submit(MakeRequest({1, 2, 3}, {0}, 20, collector.For("new"))));
  ASSERT_TRUE(running.WaitForNotificationWithTimeout(kPatience));
  // Not in time: the sample still runs.
  EXPECT_THAT(
      engine->SwapWeights(1, KeepWeights, absl::Now() - absl::Seconds(1)),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("version 1 was not activated")));
  std::thread release([&] { go_on.Notify(); });
  EXPECT_OK(engine->SwapWeights(2, KeepWeights, absl::Now() + kPatience));
  release.join();
  ASSERT_TRUE(collector.Await(2));
  EXPECT_THAT(collector.Of("old")[0].versions, ElementsAre(VersionSpan{0, 0, 20}));
}

TEST(EngineTest, CancelAndShutdownEndEverySampleOnce) {
  Collector collector;
  {
    Engine::Options options;
    options.max_batch = 2;
    auto engine = StartSmall(options);
    engine->SetVersion(0);
    absl::Notification running, go_on;
    EngineRequest request = MakeRequest({1, 2, 3}, {0, 1, 2}, 100, collector.For("cancelled"));
    request.stop = [&](absl::Span<const int32_t> tokens) {
      if (tokens.size() == 2 && !running.HasBeenNotified()) running.Notify();
      if (tokens.size() == 90) go_on.WaitForNotificationWithTimeout(kPatience);
      return false;
    };
    auto id = engine->Submit(request);
    ASSERT_OK(id);
    ASSERT_TRUE(running.WaitForNotificationWithTimeout(kPatience));
    engine->Cancel(*id);
    go_on.Notify();
    ASSERT_TRUE(collector.Await(3));
    for (const GeneratedSample& sample : collector.Of("cancelled")) {
      EXPECT_EQ(sample.reason, FinishReason::kCancelled);
      EXPECT_LT(sample.token_ids.size(), 100u);
    }
    ASSERT_OK(engine->Submit(MakeRequest({1, 2}, {0, 1, 2, 3}, 120, collector.For("rest"))));
  }
  EXPECT_TRUE(collector.Await(7));
  EXPECT_EQ(collector.Of("rest").size(), 4u);
}

TEST(EngineTest, WaitingChangesFailWhenTheEngineStops) {
  Engine::Options options;
  options.swap_mode = SwapMode::kDrain;
  auto engine = StartSmall(options);
  engine->SetVersion(0);
  Collector collector;
  absl::Notification running, go_on;
  EngineRequest request = MakeRequest({1}, {0}, 100, collector.For("a"));
  request.stop = [&](absl::Span<const int32_t> tokens) {
    if (tokens.size() == 1) {
      running.Notify();
      go_on.WaitForNotificationWithTimeout(kPatience);
    }
    return false;
  };
  ASSERT_OK(engine->Submit(request));
  ASSERT_TRUE(running.WaitForNotificationWithTimeout(kPatience));
  absl::Status status;
  std::thread change(
      [&] { status = engine->SwapWeights(1, KeepWeights, absl::Now() + kPatience); });
  const absl::Time deadline = absl::Now() + kPatience;
  while (engine->stats().waiting_swaps == 0 && absl::Now() < deadline) std::this_thread::yield();
  ASSERT_EQ(engine->stats().waiting_swaps, 1);
  std::thread end([&] { engine.reset(); });
  go_on.Notify();
  change.join();
  end.join();
  // Depending on who comes first the change was made after the sample ended, or was given up.
  if (!status.ok()) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled, HasSubstr("stop")));
  }
  EXPECT_TRUE(collector.Await(1));
}

TEST(EngineTest, MetricsCountWhatHappened) {
  Metrics metrics;
  auto engine = StartEngine(MakeModel(SmallConfig("llama"), Path::kFused), {}, &metrics);
  engine->SetVersion(6);
  Collector collector;
  ASSERT_OK(engine->Submit(MakeRequest({1, 2, 3}, {0, 1}, 5, collector.For("a"))));
  ASSERT_TRUE(collector.Await(2));
  engine.reset();
  const std::string text = metrics.Serialize();
  for (const char* line :
       {"millrace_engine_generated_tokens_total 10", "millrace_engine_prefill_tokens_total 2",
        "millrace_engine_weight_swaps_total 1", "millrace_engine_weight_version 6",
        "millrace_engine_running_samples 0", "millrace_engine_kv_used_blocks 0",
        "millrace_engine_samples_total{reason=\"length\"} 2",
        "millrace_engine_time_seconds_total{state=\"busy_decode\"}",
        "millrace_engine_swap_seconds_count 1", "millrace_engine_batch_samples_count"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

}  // namespace
}  // namespace millrace::testing
