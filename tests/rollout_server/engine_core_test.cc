// The engine step by step: what is in a batch, weight changes and cancellation at exact tokens.
#include "rollout_server/engine_core.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "model/parameter_view.h"
#include "tests/model/golden_model.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/status_matchers.h"

namespace millrace::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Tokens = std::vector<int32_t>;
using Samples = std::map<uint32_t, GeneratedSample>;

Tokens SomeTokens(int64_t n, uint64_t seed) {
  Tokens tokens;
  for (int64_t i = 0; i < n; ++i) {
    tokens.push_back(static_cast<int32_t>(UniformAt(seed, i) * 37));
  }
  return tokens;
}

absl::Status KeepWeights(Transformer&) { return absl::OkStatus(); }
absl::Status ScaleWeights(Transformer& model) {
  const at::NoGradGuard no_grad;
  model.flat_parameters().mul_(1.1);
  return absl::OkStatus();
}

std::unique_ptr<EngineCore> MakeCore(Engine::Options options = {}, Path path = Path::kFused) {
  options.threads = 2;
  auto core = EngineCore::Create(MakeModel(SmallConfig("qwen3"), path), options, nullptr);
  EXPECT_TRUE(core.ok()) << core.status();
  return *std::move(core);
}

// Ended samples go to `out` by index.
EngineRequest MakeRequest(Tokens prompt, std::vector<uint32_t> indices, int32_t max_new,
                          Samples* out) {
  EngineRequest request;
  request.prompt = std::move(prompt);
  request.indices = std::move(indices);
  request.max_new_tokens = max_new;
  request.seed = 5;
  request.on_sample = [out](GeneratedSample sample) {
    const uint32_t index = sample.index;
    EXPECT_TRUE(out->emplace(index, std::move(sample)).second) << "sample ended twice: " << index;
  };
  return request;
}

void RunToEnd(EngineCore& core) {
  for (int i = 0; core.Step(true); ++i) ASSERT_LT(i, 10000);
}

// Log-probabilities of `sampled` after `prompt` by the training forward.
std::vector<float> TrainingLogprobs(Transformer& model, const Tokens& prompt, const Tokens& sampled,
                                    double temperature) {
  const at::NoGradGuard no_grad;
  Tokens all = prompt;
  all.insert(all.end(), sampled.begin(), sampled.end());
  const int64_t n = static_cast<int64_t>(sampled.size());
  const at::Tensor hidden = *model.Forward(PackRows({all}, 0));
  const at::Tensor targets =
      at::tensor(std::vector<int64_t>(sampled.begin(), sampled.end())).to(model.device());
  const at::Tensor logprobs =
      SelectedLogprobs(hidden.narrow(0, static_cast<int64_t>(prompt.size()) - 1, n),
                       model.lm_head(), targets, {temperature, 64})
          .logprobs.to(at::kCPU);
  return {logprobs.data_ptr<float>(), logprobs.data_ptr<float>() + n};
}

TEST(EngineCoreTest, AGroupsPromptIsReadOnce) {
  auto core = MakeCore();
  ASSERT_OK(core->Swap(0, KeepWeights));
  Samples samples;
  core->Add(1, MakeRequest(SomeTokens(40, 1), {0, 1, 2, 3, 4, 5}, 8, &samples));
  RunToEnd(*core);
  EXPECT_EQ(samples.size(), 6u);
  EXPECT_EQ(core->stats().prefill_tokens, 39u);
  EXPECT_EQ(core->stats().generated_tokens, 48u);
}

TEST(EngineCoreTest, NothingIsDecodedBeforeTheFirstVersion) {
  auto core = MakeCore();
  Samples samples;
  core->Add(1, MakeRequest({1, 2}, {0}, 4, &samples));
  EXPECT_FALSE(core->Step(true));
  EXPECT_EQ(core->stats().waiting, 1);
  ASSERT_OK(core->Swap(7, KeepWeights));
  RunToEnd(*core);
  EXPECT_THAT(samples[0].versions, ElementsAre(VersionSpan{7, 0, 4}));
}

TEST(EngineCoreTest, TokensDoNotDependOnWhatElseIsInTheBatch) {
  Samples alone, crowded, others[10];
  {
    auto core = MakeCore();
    ASSERT_OK(core->Swap(0, KeepWeights));
    core->Add(1, MakeRequest(SomeTokens(21, 1), {3}, 40, &alone));
    RunToEnd(*core);
  }
  Engine::Options options;
  options.max_batch = 7;
  options.prefill_chunk = 5;
  options.kv_tokens = 512;
  auto core = MakeCore(options);
  ASSERT_OK(core->Swap(0, KeepWeights));
  for (uint64_t i = 0; i < 10; ++i) {
    core->Add(i + 1, MakeRequest(SomeTokens(3 + 7 * i, 20 + i), {0, 1}, 5 + 3 * i, &others[i]));
  }
  core->Add(20, MakeRequest(SomeTokens(21, 1), {1, 2, 3, 4}, 40, &crowded));
  RunToEnd(*core);
  EXPECT_EQ(crowded.size(), 4u);
  EXPECT_EQ(crowded[3].token_ids, alone[3].token_ids);
  EXPECT_EQ(crowded[3].logprobs, alone[3].logprobs);
  EXPECT_NE(crowded[1].token_ids, alone[3].token_ids);
}

TEST(EngineCoreTest, LogprobsAreThoseOfTheTrainingForward) {
  for (const char* name : {"llama_untied", "qwen3_tied"}) {
    SCOPED_TRACE(name);
    auto core = EngineCore::Create(LoadGolden(name, Path::kFused), {}, nullptr);
    ASSERT_OK(core);
    ASSERT_OK((*core)->Swap(0, KeepWeights));
    Samples samples;
    const Tokens prompt = {5, 17, 99, 300, 301};
    EngineRequest request = MakeRequest(prompt, {0, 1, 2, 3}, 24, &samples);
    request.sampling.temperature = 0.8f;
    (*core)->Add(1, std::move(request));
    RunToEnd(**core);
    auto model = LoadGolden(name, Path::kFused);
    for (auto& [index, sample] : samples) {
      const auto expected = TrainingLogprobs(*model, prompt, sample.token_ids, 0.8f);
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(sample.logprobs[i], expected[i], 1e-4) << "sample " << index << " token " << i;
      }
    }
  }
}

struct SwapCase {
  SwapMode mode;
  const char* name;
};
class SwapTest : public ::testing::TestWithParam<SwapCase> {};

TEST_P(SwapTest, EveryTokenCarriesTheVersionThatSampledIt) {
  Engine::Options options;
  options.swap_mode = GetParam().mode;
  auto core = MakeCore(options);
  ASSERT_OK(core->Swap(3, KeepWeights));
  Samples samples;
  const Tokens prompt = SomeTokens(20, 1);
  core->Add(1, MakeRequest(prompt, {0, 1, 2}, 20, &samples));
  for (int i = 0; i < 9; ++i) core->Step(true);  // one for the prompt, eight tokens
  ASSERT_OK(core->Swap(4, ScaleWeights));
  RunToEnd(*core);
  const bool recompute = GetParam().mode == SwapMode::kRecompute;
  // The shared prompt once, and of each sample its last prompt token and seven of the eight.
  EXPECT_EQ(core->stats().recomputed_tokens, recompute ? 19u + 3 * 8 : 0u);
  auto before = MakeModel(SmallConfig("qwen3"), Path::kFused);
  auto after = MakeModel(SmallConfig("qwen3"), Path::kFused);
  ASSERT_OK(ScaleWeights(*after));
  ASSERT_EQ(samples.size(), 3u);
  for (auto& [index, sample] : samples) {
    EXPECT_THAT(sample.versions, ElementsAre(VersionSpan{3, 0, 8}, VersionSpan{4, 8, 20}));
    const auto old_logprobs = TrainingLogprobs(*before, prompt, sample.token_ids, 1);
    const auto new_logprobs = TrainingLogprobs(*after, prompt, sample.token_ids, 1);
    double apart = 0;
    for (size_t i = 0; i < 20; ++i) {
      if (i < 8) {
        ASSERT_NEAR(sample.logprobs[i], old_logprobs[i], 1e-4) << i;
      }
      if (i >= 8) apart = std::max<double>(apart, std::abs(sample.logprobs[i] - new_logprobs[i]));
    }
    if (recompute) {
      EXPECT_LT(apart, 1e-4);
    } else {
      EXPECT_GT(apart, 1e-3);  // the old weights' K/V is still in it
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, SwapTest,
                         ::testing::Values(SwapCase{SwapMode::kRecompute, "recompute"},
                                           SwapCase{SwapMode::kInPlace, "in_place"}),
                         [](const auto& info) { return info.param.name; });

TEST(EngineCoreTest, AfterARecomputeTokensAreThoseOfAFreshEngineOnTheSamePrefix) {
  const Tokens prompt = SomeTokens(20, 1);
  Samples samples, fresh_samples;
  auto core = MakeCore();
  ASSERT_OK(core->Swap(0, KeepWeights));
  EngineRequest request = MakeRequest(prompt, {0}, 30, &samples);
  request.sampling.temperature = 0;
  core->Add(1, request);
  for (int i = 0; i < 10; ++i) core->Step(true);
  ASSERT_OK(core->Swap(1, ScaleWeights));
  RunToEnd(*core);
  Tokens prefix = prompt;
  prefix.insert(prefix.end(), samples[0].token_ids.begin(), samples[0].token_ids.begin() + 10);
  auto fresh = MakeCore();
  ASSERT_OK(fresh->Swap(1, ScaleWeights));
  EngineRequest rest = MakeRequest(prefix, {0}, 20, &fresh_samples);
  rest.sampling.temperature = 0;
  fresh->Add(1, rest);
  RunToEnd(*fresh);
  EXPECT_EQ(fresh_samples[0].token_ids,
            Tokens(samples[0].token_ids.begin() + 10, samples[0].token_ids.end()));
  EXPECT_EQ(fresh_samples[0].logprobs,
            std::vector<float>(samples[0].logprobs.begin() + 10, samples[0].logprobs.end()));
}

TEST(EngineCoreTest, AFailedWriteKeepsTheOldVersion) {
  auto core = MakeCore();
  ASSERT_OK(core->Swap(0, KeepWeights));
  EXPECT_THAT(core->Swap(1, [](Transformer&) { return absl::DataLossError("digest"); }),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("digest")));
  EXPECT_THAT(core->Swap(2, [](Transformer&) -> absl::Status { throw std::runtime_error("boom"); }),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("boom")));
  EXPECT_EQ(core->version(), 0);
  EXPECT_EQ(core->stats().weight_swaps, 1u);
}

TEST(EngineCoreTest, WeightsAsBytesAreThoseOfAModelThatHasThem) {
  for (Path path : {Path::kFused, Path::kFakeDevice}) {
    SCOPED_TRACE(PathName(path));
    const auto other = MakeModel(SmallConfig("qwen3"), Path::kFused, 9);
    const ParameterView view = *ParameterView::Of(*other);
    auto core = MakeCore({}, path);
    ASSERT_OK(core->Swap(0, view.parameters()));
    Samples samples;
    core->Add(1, MakeRequest({1, 2, 3}, {0}, 6, &samples));
    RunToEnd(*core);
    const std::vector<float> expected =
        TrainingLogprobs(*other, {1, 2, 3}, samples[0].token_ids, 1.0);
    ASSERT_EQ(samples[0].logprobs.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(samples[0].logprobs[i], expected[i], 1e-4) << i;
    }
  }
}

TEST(EngineCoreTest, BytesThatDoNotFitAndWritesInPartKeepWhatCameAsBytes) {
  auto core = MakeCore();
  const auto other = MakeModel(SmallConfig("qwen3"), Path::kFused, 9);
  std::vector<ParameterBytes> parameters = ParameterView::Of(*other)->parameters();
  ASSERT_OK(core->Swap(4, parameters));
  parameters.back().bytes.remove_suffix(4);
  EXPECT_THAT(core->Swap(5, parameters),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(parameters.back().name)));
  EXPECT_THAT(core->Swap(6, ScaleWeights),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("came as bytes")));
  EXPECT_EQ(core->version(), 4);
  core->SetVersion(7);
  EXPECT_EQ(core->version(), 7);
  Samples samples;
  core->Add(1, MakeRequest({1, 2, 3}, {0}, 6, &samples));
  RunToEnd(*core);
  EXPECT_NEAR(samples[0].logprobs[0],
              TrainingLogprobs(*other, {1, 2, 3}, samples[0].token_ids, 1.0)[0], 1e-4);
}

TEST(EngineCoreTest, PinnedRequestsRunUnderTheirVersionOnly) {
  auto core = MakeCore();
  ASSERT_OK(core->Swap(1, KeepWeights));
  Samples past, present, future;
  EngineRequest request = MakeRequest({1, 2, 3}, {0, 1}, 10, &past);
  request.pinned_version = 0;
  core->Add(1, request);
  EXPECT_EQ(past[0].reason, FinishReason::kCancelled);
  request = MakeRequest({1, 2, 3}, {0, 1}, 10, &present);
  request.pinned_version = 1;
  core->Add(2, request);
  request = MakeRequest({1, 2, 3}, {0}, 10, &future);
  request.pinned_version = 2;
  core->Add(3, request);
  for (int i = 0; i < 4; ++i) core->Step(true);
  EXPECT_EQ(core->stats().running, 2);
  ASSERT_OK(core->Swap(2, KeepWeights));
  ASSERT_EQ(present.size(), 2u);
  EXPECT_EQ(present[1].reason, FinishReason::kCancelled);
  EXPECT_EQ(present[1].token_ids.size(), 3u);
  RunToEnd(*core);
  EXPECT_EQ(future[0].reason, FinishReason::kLength);
  EXPECT_THAT(future[0].versions, ElementsAre(VersionSpan{2, 0, 10}));
}

TEST(EngineCoreTest, CancelledSamplesBringWhatTheyHave) {
  Engine::Options options;
  options.max_batch = 2;
  auto core = MakeCore(options);
  ASSERT_OK(core->Swap(0, KeepWeights));
  Samples cancelled, other;
  core->Add(1, MakeRequest({1, 2, 3}, {0, 1, 2}, 50, &cancelled));
  core->Add(2, MakeRequest({4}, {0}, 5, &other));
  for (int i = 0; i < 6; ++i) core->Step(true);
  core->Cancel(1);
  core->Cancel(1);
  core->Cancel(99);
  ASSERT_EQ(cancelled.size(), 3u);
  EXPECT_EQ(cancelled[0].token_ids.size(), 5u);
  EXPECT_EQ(cancelled[0].logprobs.size(), 5u);
  EXPECT_EQ(cancelled[2].token_ids.size(), 0u);
  RunToEnd(*core);
  EXPECT_EQ(other[0].reason, FinishReason::kLength);
}

// Arrivals, cancels and weight changes in any order, in a cache that is too small for all.
TEST(EngineCoreTest, AnyMixOfEventsGivesEachRequestTheTokensItHasAlone) {
  struct Wanted {
    Tokens prompt;
    int32_t max_new;
    uint64_t seed;
    Samples samples;
    bool cancelled = false;
  };
  auto alone = MakeCore();
  ASSERT_OK(alone->Swap(0, KeepWeights));
  uint64_t alone_id = 1;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto draw = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
    Engine::Options options;
    options.max_batch = 1 + draw(6);
    options.kv_tokens = 128;
    options.prefill_chunk = 1 + draw(30);
    options.swap_mode = draw(2) == 0 ? SwapMode::kInPlace : SwapMode::kRecompute;
    auto core = MakeCore(options);
    ASSERT_OK(core->Swap(0, KeepWeights));
    std::vector<std::unique_ptr<Wanted>> wanted;
    int64_t version = 0;
    for (int event = 0; event < 150; ++event) {
      const int64_t what = draw(12);
      if (what == 0) {
        auto w = std::make_unique<Wanted>();
        w->prompt = SomeTokens(1 + draw(50), random());
        w->max_new = static_cast<int32_t>(1 + draw(30));
        w->seed = random();
        std::vector<uint32_t> indices;
        for (int64_t i = 0; i <= draw(5); ++i) indices.push_back(static_cast<uint32_t>(3 + i));
        EngineRequest request = MakeRequest(w->prompt, indices, w->max_new, &w->samples);
        request.seed = w->seed;
        request.priority = static_cast<int>(draw(2));
        ASSERT_OK(core->Validate(request));
        wanted.push_back(std::move(w));
        core->Add(wanted.size(), std::move(request));
      } else if (what == 1 && !wanted.empty()) {
        const int64_t i = draw(wanted.size());
        wanted[i]->cancelled = true;
        core->Cancel(i + 1);
      } else if (what == 2) {
        ASSERT_OK(core->Swap(++version, KeepWeights));
      } else {
        core->Step(true);
      }
    }
    RunToEnd(*core);
    EXPECT_EQ(core->stats().waiting, 0);
    EXPECT_EQ(core->used_kv_blocks(), 0);
    for (const auto& w : wanted) {
      for (auto& [index, sample] : w->samples) {
        Samples expected;
        EngineRequest request = MakeRequest(w->prompt, {index}, w->max_new, &expected);
        request.seed = w->seed;
        alone->Add(alone_id++, std::move(request));
        RunToEnd(*alone);
        Tokens reference = expected[index].token_ids;
        ASSERT_LE(sample.token_ids.size(), reference.size());
        if (!w->cancelled) {
          EXPECT_EQ(sample.token_ids.size(), reference.size());
        }
        reference.resize(sample.token_ids.size());
        EXPECT_EQ(sample.token_ids, reference);
      }
    }
  }
}

TEST(EngineCoreTest, AStepOnADeviceWaitsForItOnce) {
  auto core = MakeCore({}, Path::kFakeDevice);
  ASSERT_OK(core->Swap(0, KeepWeights));
  Samples samples, reference;
  core->Add(1, MakeRequest(SomeTokens(20, 1), {0, 1, 2, 3, 4}, 6, &samples));
  ResetFakeDeviceCounts();
  RunToEnd(*core);
  const FakeDeviceCounts counts = ReadFakeDeviceCounts();
  EXPECT_EQ(counts.synchronisations, 0);
  // One step read the shared prompt and had nothing to sample.
  EXPECT_EQ(core->stats().decode_steps, 7u);
  EXPECT_EQ(counts.to_host, 6);
  auto host = MakeCore();
  ASSERT_OK(host->Swap(0, KeepWeights));
  host->Add(1, MakeRequest(SomeTokens(20, 1), {0, 1, 2, 3, 4}, 6, &reference));
  RunToEnd(*host);
  for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(samples[i].token_ids, reference[i].token_ids);
}

TEST(EngineCoreTest, RequestsThatCannotBeServedAreRefusedByName) {
  Engine::Options options;
  options.kv_tokens = 64;
  auto core = MakeCore(options);
  Samples samples;
  const EngineRequest good = MakeRequest({1, 2}, {0}, 4, &samples);
  EXPECT_OK(core->Validate(good));
  struct Case {
    std::function<void(EngineRequest&)> change;
    const char* message;
  };
  const std::vector<Case> cases = {
      {[](EngineRequest& r) { r.prompt.clear(); }, "prompt has no token"},
      {[](EngineRequest& r) { r.prompt[1] = 37; }, "token 37 is outside the vocabulary of 37"},
      {[](EngineRequest& r) { r.indices.clear(); }, "no sample"},
      {[](EngineRequest& r) { r.max_new_tokens = 0; }, "max_new_tokens is 0"},
      {[](EngineRequest& r) { r.on_sample = nullptr; }, "on_sample is empty"},
      {[](EngineRequest& r) { r.sampling.temperature = -1; }, "temperature is -1"},
      {[](EngineRequest& r) { r.sampling.temperature = NAN; }, "temperature is nan"},
      {[](EngineRequest& r) { r.sampling.top_p = 0; }, "top_p is 0"},
      {[](EngineRequest& r) { r.sampling.top_k = -2; }, "top_k is -2"},
      {[](EngineRequest& r) { r.max_new_tokens = 127; }, "maximum context length of 128"},
  };
  for (const Case& c : cases) {
    EngineRequest request = good;
    c.change(request);
    EXPECT_THAT(core->Validate(request),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)));
  }
  EngineRequest large = good;
  large.max_new_tokens = 100;
  EXPECT_THAT(core->Validate(large),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the cache has 4")));
  options.max_batch = 0;
  EXPECT_THAT(EngineCore::Create(MakeModel(SmallConfig("qwen3"), Path::kFused), options, nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_batch is 0")));
}

}  // namespace
}  // namespace millrace::testing
