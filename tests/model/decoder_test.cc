#include "model/decoder.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <deque>

#include "model/kernels/bf16_products.h"
#include "model/matrix_products.h"
#include "model/parameter_view.h"
#include "model/sampling.h"
#include "tests/model/golden_model.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/status_matchers.h"

namespace millrace::testing {
namespace {

using ::testing::HasSubstr;

using Tokens = std::vector<int32_t>;

// A model with its cache and decoder.
struct Rig {
  Rig(std::unique_ptr<Transformer> m, Path path, int64_t cache_tokens = 2048, int threads = 2)
      : model(std::move(m)),
        cache(*KvCache::Create(model->config(), cache_tokens, model->device())),
        pool(threads),
        decoder(model.get(), cache.get(), {path == Path::kOperators, &pool}) {}
  // Logits on the CPU of one call.
  at::Tensor Run(const std::vector<DecodeSequence>& sequences) {
    auto logits = decoder.Decode(sequences);
    EXPECT_TRUE(logits.ok()) << logits.status();
    return logits.ok() ? logits->to(at::kCPU).clone() : at::Tensor();
  }
  std::unique_ptr<Transformer> model;
  std::unique_ptr<KvCache> cache;
  ComputePool pool;
  Decoder decoder;
};

at::Tensor TrainingLogits(Transformer& model, const Tokens& tokens) {
  at::NoGradGuard no_grad;
  const at::Tensor hidden = *model.Forward(PackRows({tokens}, 0));
  return at::mm(hidden, model.lm_head().t()).to(at::kCPU);
}

Tokens SomeTokens(int64_t n, int64_t vocab, uint64_t seed) {
  Tokens tokens;
  for (int64_t i = 0; i < n; ++i) {
    tokens.push_back(static_cast<int32_t>(UniformAt(seed, i) * static_cast<double>(vocab)));
  }
  return tokens;
}

class DecoderTest : public ::testing::TestWithParam<Path> {};

TEST_P(DecoderTest, ContinuesTheGoldenPromptsGreedily) {
  for (const char* name : {"llama_untied", "llama3_rope", "mistral_swa", "qwen2_tied", "qwen2_yarn",
                           "qwen3_tied", "qwen3_tied_bf16", "qwen3_untied", "qwen3_untied_sharded",
                           "qwen3_window", "qwen3_moe", "qwen3_moe_mixed"}) {
    SCOPED_TRACE(name);
    const bool bf16 = std::string(name) == "qwen3_tied_bf16";
    const GoldenCase golden = ReadGoldenCase(name, bf16 ? "_fp32_compute" : "");
    const nlohmann::json& greedy = golden.json[bf16 ? "greedy_fp32_compute" : "greedy"];
    const auto prompts = greedy["prompts"].get<std::vector<Tokens>>();
    const auto expected = greedy["new_tokens"].get<std::vector<Tokens>>();
    Rig rig(LoadGolden(name, GetParam()), GetParam());
    std::vector<KvSequence> kv;
    std::vector<Tokens> next = prompts, made(prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) kv.push_back(rig.cache->NewSequence());
    // The fake device is slow; a few tokens show that its operators do the same.
    const int steps = GetParam() == Path::kFakeDevice ? 4 : 32;
    for (int step = 0; step < steps; ++step) {
      std::vector<DecodeSequence> sequences;
      for (size_t i = 0; i < prompts.size(); ++i) sequences.push_back({&kv[i], next[i], true});
      const at::Tensor best = rig.Run(sequences).argmax(-1);
      for (size_t i = 0; i < prompts.size(); ++i) {
        next[i] = {static_cast<int32_t>(best[i].item<int64_t>())};
        made[i].push_back(next[i][0]);
      }
    }
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(made[i], Tokens(expected[i].begin(), expected[i].begin() + steps));
    }
  }
}

TEST_P(DecoderTest, LogitsEqualTheTrainingForwardAtEveryPosition) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe"}) {
    SCOPED_TRACE(type);
    Rig rig(MakeModel(SmallConfig(type), GetParam()), GetParam());
    const Tokens tokens = SomeTokens(70, 37, 1);
    const at::Tensor expected = TrainingLogits(*rig.model, tokens);
    KvSequence kv = rig.cache->NewSequence();
    int64_t at = 0;
    for (int64_t count : {5, 1, 1, 20, 1, 16, 3, 1, 22}) {
      const DecodeSequence sequence = {&kv, {tokens.data() + at, static_cast<size_t>(count)}, true};
      at += count;
      EXPECT_LT(MaxDifference(rig.Run({sequence}), expected.narrow(0, at - 1, 1)), 1e-4)
          << "after " << at;
    }
    EXPECT_EQ(at, 70);
  }
}

TEST(DecoderBf16Test, LogitsAreThoseOfATrainingPassThatRoundsTheSameFactors) {
  if (!HasBf16Products()) GTEST_SKIP() << "this CPU has no AVX512_BF16";
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3"}) {
    SCOPED_TRACE(type);
    Rig rig(MakeModel(SmallConfig(type), Path::kFused), Path::kFused);
    rig.model->set_compute_type(ComputeType::kBfloat16);
    const Tokens tokens = SomeTokens(70, 37, 1);
    at::NoGradGuard no_grad;
    const at::Tensor hidden = *rig.model->Forward(PackRows({tokens}, 0));
    at::Tensor expected = at::empty({70, 37});
    MultiplyInto(ComputeType::kBfloat16, expected, {}, hidden, rig.model->lm_head().t());
    KvSequence kv = rig.cache->NewSequence();
    int64_t at = 0;
    for (int64_t count : {5, 1, 1, 20, 43}) {
      const DecodeSequence sequence = {&kv, {tokens.data() + at, static_cast<size_t>(count)}, true};
      at += count;
      // The same factors in another order of sums: a number on the edge may round the other way.
      EXPECT_LT(MaxDifference(rig.Run({sequence}), expected.narrow(0, at - 1, 1)), 0.02)
          << "after " << at;
    }
  }
}

TEST_P(DecoderTest, ForksOfAPromptContinueAsIfTheyHadReadItAlone) {
  Rig rig(MakeModel(SmallConfig("qwen3"), GetParam()), GetParam());
  const Tokens prompt = SomeTokens(37, 37, 2);
  KvSequence shared = rig.cache->NewSequence();
  EXPECT_EQ(rig.Run({{&shared, prompt, false}}).size(0), 0);
  std::vector<KvSequence> kv;
  std::vector<Tokens> own;
  for (int i = 0; i < 5; ++i) {
    kv.push_back(shared.Fork());
    own.push_back(SomeTokens(3 + 9 * i, 37, 10 + i));
  }
  shared.Clear();
  // All decode one token at a time, joined in one call for as long as they have tokens.
  for (size_t t = 0; t < 39; ++t) {
    std::vector<DecodeSequence> sequences;
    std::vector<int> ended;
    for (int i = 0; i < 5; ++i) {
      if (t >= own[i].size()) continue;
      const bool last = t + 1 == own[i].size();
      sequences.push_back({&kv[i], {&own[i][t], 1}, last});
      if (last) ended.push_back(i);
    }
    const at::Tensor logits = rig.Run(sequences);
    ASSERT_EQ(logits.size(0), static_cast<int64_t>(ended.size()));
    for (size_t e = 0; e < ended.size(); ++e) {
      Tokens all = prompt;
      all.insert(all.end(), own[ended[e]].begin(), own[ended[e]].end());
      const at::Tensor expected = TrainingLogits(*rig.model, all);
      EXPECT_LT(MaxDifference(logits[e], expected[static_cast<int64_t>(all.size()) - 1]), 1e-4);
    }
  }
}

TEST_P(DecoderTest, AFullCacheIsReportedAndNothingChanges) {
  Rig rig(MakeModel(SmallConfig("qwen3"), GetParam()), GetParam(), 48);
  const Tokens tokens = SomeTokens(20, 37, 3);
  KvSequence a = rig.cache->NewSequence(), b = rig.cache->NewSequence();
  const auto logits = rig.decoder.Decode({{{&a, tokens, true}, {&b, tokens, true}}});
  EXPECT_THAT(logits, StatusIs(absl::StatusCode::kResourceExhausted,
                               HasSubstr("2 sequences need 4 more KV blocks, 3 of 3 are free")));
  EXPECT_EQ(a.length() + b.length(), 0);
  EXPECT_EQ(rig.cache->free_blocks(), 3);
}

TEST_P(DecoderTest, TokensOutsideTheVocabularyAreRefused) {
  Rig rig(MakeModel(SmallConfig("qwen3"), GetParam()), GetParam());
  KvSequence kv = rig.cache->NewSequence();
  for (int32_t token : {-1, 37}) {
    EXPECT_THAT(rig.decoder.Decode({{{&kv, {&token, 1}, true}}}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("vocabulary of 37")));
  }
  EXPECT_EQ(kv.length(), 0);
}

TEST_P(DecoderTest, NewWeightsAreUsedOnceTheDecoderIsTold) {
  Rig rig(MakeModel(SmallConfig("llama"), GetParam()), GetParam());
  const Tokens tokens = SomeTokens(9, 37, 4);
  KvSequence kv = rig.cache->NewSequence();
  const at::Tensor before = rig.Run({{&kv, tokens, true}});
  rig.model->flat_parameters().mul_(1.1);
  rig.decoder.WeightsChanged();
  kv.Clear();
  const at::Tensor after = rig.Run({{&kv, tokens, true}});
  EXPECT_GT(MaxDifference(before, after), 1e-2);
  EXPECT_LT(MaxDifference(after[0], TrainingLogits(*rig.model, tokens)[8]), 1e-4);
}

// Copies of the parameters of `model` with the names and shapes that weight sync brings.
struct OutsideParameters {
  explicit OutsideParameters(const Transformer& model) : view(*ParameterView::Of(model)) {
    for (const ParameterBytes& p : view.parameters()) {
      bytes.emplace_back(p.bytes.begin(), p.bytes.end());
      parameters.push_back({p.name, p.dtype, p.shape, bytes.back()});
    }
    std::reverse(parameters.begin(), parameters.end());
  }
  ParameterView view;
  std::deque<std::vector<std::byte>> bytes;
  std::vector<ParameterBytes> parameters;  // in an order that is not the model's
};

TEST(TakeWeightsTest, GivesTheLogitsOfAModelThatHasThem) {
  for (const char* type : {"llama", "qwen2", "qwen3", "mistral"}) {
    SCOPED_TRACE(type);
    Rig has(MakeModel(SmallConfig(type), Path::kFused, 2), Path::kFused);
    Rig takes(MakeModel(SmallConfig(type), Path::kFused, 3), Path::kFused);
    const Tokens tokens = SomeTokens(9, 37, 4);
    KvSequence a = has.cache->NewSequence(), b = takes.cache->NewSequence();
    const at::Tensor expected = has.Run({{&a, tokens, true}});
    const at::Tensor own = takes.Run({{&b, tokens, true}});
    EXPECT_GT(MaxDifference(expected, own), 1e-3);
    {
      const OutsideParameters outside(*has.model);
      ASSERT_TRUE(takes.decoder.CanTakeWeights(outside.parameters));
      ASSERT_OK(takes.decoder.TakeWeights(outside.parameters));
    }  // its bytes are gone
    b.Clear();
    EXPECT_TRUE(at::equal(takes.Run({{&b, tokens, true}}), expected));
    takes.decoder.WeightsChanged();
    b.Clear();
    EXPECT_TRUE(at::equal(takes.Run({{&b, tokens, true}}), own));
    // Once more, now that there are copies of embedding and norms.
    ASSERT_OK(takes.decoder.TakeWeights(OutsideParameters(*has.model).parameters));
    ASSERT_OK(takes.decoder.TakeWeights(OutsideParameters(*takes.model).parameters));
    b.Clear();
    EXPECT_TRUE(at::equal(takes.Run({{&b, tokens, true}}), own));
  }
}

TEST(TakeWeightsTest, RoundsThemAsAModelThatHasThemDoes) {
  if (!HasBf16Products()) GTEST_SKIP() << "no AVX512_BF16 here";
  Rig has(MakeModel(SmallConfig("llama"), Path::kFused, 2), Path::kFused);
  Rig takes(*Transformer::Allocate(SmallConfig("llama"), at::kCPU), Path::kFused);
  for (Rig* rig : {&has, &takes}) rig->model->set_compute_type(ComputeType::kBfloat16);
  ASSERT_OK(takes.decoder.TakeWeights(OutsideParameters(*has.model).parameters));
  const Tokens tokens = SomeTokens(9, 37, 4);
  KvSequence a = has.cache->NewSequence(), b = takes.cache->NewSequence();
  EXPECT_TRUE(at::equal(has.Run({{&a, tokens, true}}), takes.Run({{&b, tokens, true}})));
}

TEST(TakeWeightsTest, IsNotForOtherFormatsAndPaths) {
  Rig fused(MakeModel(SmallConfig("qwen3"), Path::kFused), Path::kFused);
  Rig operators(MakeModel(SmallConfig("qwen3"), Path::kOperators), Path::kOperators);
  Rig experts(MakeModel(SmallConfig("qwen3_moe"), Path::kFused), Path::kFused);
  OutsideParameters outside(*fused.model);
  EXPECT_FALSE(operators.decoder.CanTakeWeights(outside.parameters));
  EXPECT_FALSE(experts.decoder.CanTakeWeights(OutsideParameters(*experts.model).parameters));
  ParameterBytes& first = outside.parameters.front();
  first.bytes = {first.bytes.data() + 1, first.bytes.size()};  // looked at only, not read
  EXPECT_FALSE(fused.decoder.CanTakeWeights(outside.parameters));
  first.dtype = "BF16";
  EXPECT_FALSE(fused.decoder.CanTakeWeights(outside.parameters));
}

// Pages of a CPU tensor that have physical memory.
int64_t ResidentPages(const at::Tensor& tensor) {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(tensor.data_ptr()) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(tensor.data_ptr()) + tensor.nbytes();
  std::vector<unsigned char> pages((end - begin + page - 1) / page);
  EXPECT_EQ(mincore(reinterpret_cast<void*>(begin), end - begin, pages.data()), 0);
  return std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return p & 1; });
}

TEST(TakeWeightsTest, AnAllocatedModelTakesNoMemory) {
  ModelConfig config = SmallConfig("qwen3");
  config.vocab_size = 1 << 18;  // 25 MB, of which nothing may be written
  Rig takes(*Transformer::Allocate(config, at::kCPU), Path::kFused);
  const OutsideParameters outside(*MakeModel(config, Path::kFused));
  ASSERT_OK(takes.decoder.TakeWeights(outside.parameters));
  KvSequence kv = takes.cache->NewSequence();
  const Tokens tokens = {1, 1 << 17};
  takes.Run({{&kv, tokens, true}});
  // The allocator's header shares the first page, which may be a huge one.
  const at::Tensor flat = takes.model->flat_parameters();
  EXPECT_LE(ResidentPages(flat), static_cast<int64_t>(flat.nbytes() / sysconf(_SC_PAGESIZE) / 10));
}

INSTANTIATE_TEST_SUITE_P(Paths, DecoderTest,
                         ::testing::Values(Path::kFused, Path::kOperators, Path::kFakeDevice),
                         [](const auto& info) { return PathName(info.param); });

class FusedDecoderTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(FusedDecoderTest, LogitsAreTheSameToTheLastBitWhateverElseIsInTheCall) {
  ModelConfig config = SmallConfig("qwen3");
  config.sliding_window = GetParam();
  config.window_layers = {true, false};
  config.head_dim = 32;
  config.hidden_size = 100;
  Rig rig(MakeModel(config, Path::kFused), Path::kFused, 8192);
  const Tokens tokens = SomeTokens(230, 37, 5);
  const Tokens others = SomeTokens(300, 37, 6);
  KvSequence kv = rig.cache->NewSequence();
  const at::Tensor whole = rig.Run({{&kv, tokens, true}});
  for (int64_t chunk : {1, 7, 16, 100}) {
    KvSequence again = rig.cache->NewSequence();
    std::vector<KvSequence> noise;
    for (int i = 0; i < 20; ++i) noise.push_back(rig.cache->NewSequence());
    at::Tensor last;
    for (int64_t at = 0; at < 230; at += chunk) {
      const size_t count = static_cast<size_t>(std::min<int64_t>(chunk, 230 - at));
      std::vector<DecodeSequence> call;
      for (int i = 0; i < 20; ++i) {
        if ((at + i) % 3 == 0) {
          call.push_back({&noise[i], {others.data() + i, static_cast<size_t>(1 + i % 4)}, true});
        }
      }
      call.insert(call.begin(), {&again, {tokens.data() + at, count}, true});
      last = rig.Run(call)[0];
    }
    EXPECT_TRUE(at::equal(last, whole[0])) << "chunk " << chunk;
  }
  // A group whose members share the prompt's blocks gives what each gives alone.
  KvSequence prompt = rig.cache->NewSequence();
  rig.Run({{&prompt, {tokens.data(), 200}, false}});
  std::vector<KvSequence> forks;
  for (int i = 0; i < 9; ++i) forks.push_back(prompt.Fork());
  std::vector<DecodeSequence> group;
  for (size_t t = 200; t < 230; ++t) {
    group.clear();
    for (KvSequence& fork : forks) group.push_back({&fork, {&tokens[t], 1}, true});
    const at::Tensor logits = rig.Run(group);
    if (t == 229) {
      EXPECT_TRUE(at::equal(logits[8], whole[0]));
    }
  }
}

// Without a window, and with some that end inside a block, a chunk and beyond all tokens.
INSTANTIATE_TEST_SUITE_P(Windows, FusedDecoderTest, ::testing::Values(0, 1, 30, 128, 150, 1000));

TEST(WindowedDecoderTest, AWindowOverLongSequencesEqualsTheTrainingForward) {
  for (int64_t window : {1, 16, 33, 128, 140}) {
    ModelConfig config = SmallConfig("mistral");
    config.sliding_window = window;
    Rig rig(MakeModel(config, Path::kFused), Path::kFused);
    const Tokens tokens = SomeTokens(300, 37, 8);
    const at::Tensor expected = TrainingLogits(*rig.model, tokens);
    rig.model->set_force_operators(true);
    EXPECT_LT(MaxDifference(TrainingLogits(*rig.model, tokens), expected), 1e-4) << window;
    KvSequence kv = rig.cache->NewSequence();
    int64_t at = 0;
    for (int64_t count : {131, 1, 100, 1, 67}) {
      const DecodeSequence sequence = {&kv, {tokens.data() + at, static_cast<size_t>(count)}, true};
      at += count;
      EXPECT_LT(MaxDifference(rig.Run({sequence}), expected.narrow(0, at - 1, 1)), 1e-4)
          << window << " after " << at;
    }
  }
}

TEST(FakeDeviceDecoderTest, AStepWaitsForTheDeviceOnceForTheWholeBatch) {
  Rig rig(MakeModel(SmallConfig("qwen3"), Path::kFakeDevice), Path::kFakeDevice);
  const Tokens tokens = SomeTokens(24, 37, 7);
  std::vector<KvSequence> kv;
  for (int i = 0; i < 8; ++i) kv.push_back(rig.cache->NewSequence());
  std::vector<DecodeSequence> prefill, decode;
  for (int i = 0; i < 8; ++i) {
    prefill.push_back({&kv[i], {tokens.data(), static_cast<size_t>(2 + i)}, true});
    decode.push_back({&kv[i], {tokens.data(), 1}, true});
  }
  rig.Run(prefill);
  std::vector<SampleRow> rows(8);
  int64_t uploads = 0;
  for (int batch : {8, 3}) {
    decode.resize(batch);
    rows.resize(batch);
    ResetFakeDeviceCounts();
    auto logits = rig.decoder.Decode(decode);
    ASSERT_OK(logits);
    Sample(*logits, rows);
    const FakeDeviceCounts counts = ReadFakeDeviceCounts();
    EXPECT_EQ(counts.synchronisations, 0);
    EXPECT_EQ(counts.to_host, 1);
    EXPECT_LE(counts.to_device, 6);
    if (uploads > 0) {
      EXPECT_EQ(counts.to_device, uploads);  // not a matter of the batch
    }
    uploads = counts.to_device;
  }
}

}  // namespace
}  // namespace millrace::testing
