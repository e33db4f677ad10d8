#include "model/transformer.h"

#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <tuple>

#include "common/files.h"
#include "model/experts.h"
#include "model/logprobs.h"
#include "tests/model/golden_model.h"
#include "tests/testing/fake_device.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using testing::MaxDifference;
using testing::Path;

constexpr double kLogitTolerance = 2e-4, kLogprobTolerance = 1e-4, kGradNormTolerance = 1e-3;

const std::string kGoldenModels[] = {"llama_untied",    "llama3_rope",          "mistral_swa",
                                     "qwen2_tied",      "qwen2_yarn",           "qwen3_tied",
                                     "qwen3_untied",    "qwen3_untied_sharded", "qwen3_moe",
                                     "qwen3_moe_mixed", "qwen3_window"};

// Mean next-token cross entropy over all rows; its backward fills the gradients.
double Backward(Transformer* model, const std::vector<std::vector<int32_t>>& rows,
                const PackedBatch& batch, int64_t chunk) {
  std::vector<int64_t> from, targets;
  int64_t base = 0;
  for (const auto& row : rows) {
    for (size_t t = 0; t + 1 < row.size(); ++t) {
      from.push_back(base + t);
      targets.push_back(row[t + 1]);
    }
    base += row.size();
  }
  absl::StatusOr<at::Tensor> hidden = model->Forward(batch);
  EXPECT_TRUE(hidden.ok()) << hidden.status();
  const auto index = [&](const std::vector<int64_t>& v) {
    return at::tensor(v, at::kLong).to(model->device());
  };
  at::Tensor loss = -SelectedLogprobs(hidden->index_select(0, index(from)), model->lm_head(),
                                      index(targets), {1.0, chunk})
                         .logprobs.mean();
  loss.backward();
  return loss.item<double>();
}

// log p(token | those before it) of all tokens but the first of each row, rows end to end;
// `hidden` is the forward pass's of the rows packed so.
at::Tensor Logprobs(const Transformer& model, const at::Tensor& hidden,
                    const std::vector<std::vector<int32_t>>& rows) {
  std::vector<at::Tensor> parts;
  int64_t at = 0;
  for (const std::vector<int32_t>& row : rows) {
    const int64_t n = row.size();
    const at::Tensor targets = at::tensor(row, at::kInt).narrow(0, 1, n - 1).to(at::kLong);
    parts.push_back(SelectedLogprobs(hidden.narrow(0, at, n - 1), model.lm_head(),
                                     targets.to(model.device()), {1.0, 5})
                        .logprobs);
    at += n;
  }
  return at::cat(parts);
}

// The golden numbers in that order.
at::Tensor ExpectedLogprobs(const std::vector<at::Tensor>& rows) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& row : rows) parts.push_back(row.narrow(0, 1, row.size(0) - 1));
  return at::cat(parts);
}

class GoldenTest : public ::testing::TestWithParam<std::tuple<std::string, Path, int>> {};

TEST_P(GoldenTest, GivesTheReferencesLogitsLogprobsAndGradients) {
  const auto [name, path, cut] = GetParam();
  const testing::GoldenCase golden = testing::ReadGoldenCase(name);
  std::unique_ptr<Transformer> model = testing::LoadGolden(name, path);
  ASSERT_NE(model, nullptr);
  const PackedBatch batch = testing::PackRows(golden.rows, cut);
  struct {
    double logits = 0, logprobs = 0, norms = 0;
  } parity;
  {
    c10::AutoGradMode no_grad(false);
    absl::StatusOr<at::Tensor> hidden = model->Forward(batch);
    ASSERT_TRUE(hidden.ok()) << hidden.status();
    at::Tensor logits = at::matmul(*hidden, model->lm_head().t());
    parity.logits = MaxDifference(logits, at::cat(golden.logits, 0));
    EXPECT_LT(parity.logits, kLogitTolerance);
    const at::Tensor logprobs = Logprobs(*model, *hidden, golden.rows);
    parity.logprobs = MaxDifference(logprobs, ExpectedLogprobs(golden.logprobs));
    EXPECT_LT(parity.logprobs, kLogprobTolerance);
    if (!golden.left_logits.empty()) {
      EXPECT_LT(MaxDifference(logits, at::cat(golden.left_logits, 0)), kLogitTolerance);
      EXPECT_LT(MaxDifference(logprobs, ExpectedLogprobs(golden.left_logprobs)), kLogprobTolerance);
    }
  }
  EXPECT_NEAR(Backward(model.get(), golden.rows, batch, 16), golden.json["loss"].get<double>(),
              1e-4);
  for (const NamedParameter& p : model->parameters()) {
    const double expected = golden.json["grad_norms"][p.name].get<double>();
    const double norm = p.grad.norm().item<double>();
    EXPECT_NEAR(norm, expected, kGradNormTolerance * expected) << p.name;
    if (expected > 0) parity.norms = std::max(parity.norms, std::abs(norm / expected - 1));
  }
  // docs/models.md has these.
  std::printf("parity | `%s` | %s%s | %.1e | %.1e | %.1e |\n", name.c_str(),
              testing::PathName(path).c_str(), cut > 0 ? ", prefixes" : "", parity.logits,
              parity.logprobs, parity.norms);
  const std::string file = JoinPath(testing::GoldenModelDir(name), "grads.safetensors");
  if (!FileExists(file)) return;
  for (const NamedParameter& p : model->parameters()) {
    at::Tensor expected = testing::ReadTensor(file, "grad." + p.name);
    EXPECT_LT(MaxDifference(p.grad, expected), 1e-3 * expected.abs().max().item<double>() + 1e-6)
        << p.name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTest,
                         ::testing::Combine(::testing::ValuesIn(kGoldenModels),
                                            ::testing::Values(Path::kFused, Path::kOperators),
                                            ::testing::Values(0, 5)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" +
                                  testing::PathName(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) == 0 ? "_packed" : "_prefixes");
                         });

TEST(GoldenModelTest, BfloatWeightsComputedInFloatGiveTheReferencesNumbers) {
  const testing::GoldenCase golden = testing::ReadGoldenCase("qwen3_tied_bf16", "_fp32_compute");
  for (const Path path : {Path::kFused, Path::kOperators}) {
    std::unique_ptr<Transformer> model = testing::LoadGolden("qwen3_tied_bf16", path);
    ASSERT_NE(model, nullptr);
    c10::AutoGradMode no_grad(false);
    absl::StatusOr<at::Tensor> hidden = model->Forward(testing::PackRows(golden.rows, 0));
    ASSERT_TRUE(hidden.ok()) << hidden.status();
    EXPECT_LT(MaxDifference(at::matmul(*hidden, model->lm_head().t()), at::cat(golden.logits, 0)),
              kLogitTolerance);
    EXPECT_LT(
        MaxDifference(Logprobs(*model, *hidden, golden.rows), ExpectedLogprobs(golden.logprobs)),
        kLogprobTolerance);
  }
}

TEST(GoldenModelTest, RoutersAndTheirBalanceLossAreTheReferences) {
  for (const char* name : {"qwen3_moe", "qwen3_moe_mixed"}) {
    const testing::GoldenCase golden = testing::ReadGoldenCase(name);
    std::unique_ptr<Transformer> model = testing::LoadGolden(name, Path::kOperators);
    ASSERT_NE(model, nullptr);
    auto got = model->RouterLogits(testing::PackRows(golden.rows, 0));
    ASSERT_TRUE(got.ok()) << got.status();
    // (layers, rows, padded tokens, experts)
    const at::Tensor expected = testing::ReadTensor(
        JoinPath(testing::GoldenModelDir(name), "golden.safetensors"), "right.router_logits");
    ASSERT_EQ(static_cast<int64_t>(got->size()), expected.size(0)) << name;
    for (size_t l = 0; l < got->size(); ++l) {
      int64_t at = 0;
      for (size_t r = 0; r < golden.rows.size(); ++r) {
        const int64_t n = golden.rows[r].size();
        EXPECT_LT(MaxDifference((*got)[l].narrow(0, at, n), expected[l][r].narrow(0, 0, n)), 1e-4);
        at += n;
      }
    }
    const at::Tensor loss = RouterBalanceLoss(model->config(), *got);
    EXPECT_NEAR(loss.item<double>(), golden.json["router_aux_loss"].get<double>(), 1e-4) << name;
    loss.backward();
    for (const NamedParameter& p : model->parameters()) {
      if (p.name.ends_with("mlp.gate.weight")) {
        EXPECT_GT(p.grad.abs().max().item<double>(), 0) << p.name;
      }
    }
  }
}

// Groups of one prompt and several completions of many lengths, in both layouts.
struct Groups {
  std::vector<std::vector<int32_t>> rows;  // prompt and completion, unshared
  PackedBatch unshared, shared;
  std::vector<int64_t> unshared_rows, shared_rows;  // packed rows of the completions, in one order
};

Groups MakeGroups(const ModelConfig& config,
                  const std::vector<std::pair<int, std::vector<int>>>& lengths) {
  Groups g;
  uint32_t state = 7;
  const auto token = [&] {
    state = state * 1664525u + 1013904223u;
    return static_cast<int32_t>((state >> 8) % config.vocab_size);
  };
  for (const auto& [prompt_length, completions] : lengths) {
    std::vector<int32_t> prompt(prompt_length);
    for (int32_t& t : prompt) t = token();
    const auto add = [&](const std::vector<int32_t>& ids, int first, int64_t prefix) {
      const int64_t begin = g.shared.token_ids.size();
      for (size_t i = 0; i < ids.size(); ++i) {
        g.shared.token_ids.push_back(ids[i]);
        g.shared.positions.push_back(first + static_cast<int>(i));
        if (prefix >= 0) g.shared_rows.push_back(begin + i);
      }
      g.shared.segments.push_back({begin, begin + static_cast<int64_t>(ids.size()), prefix});
    };
    const int64_t prompt_segment = g.shared.segments.size();
    add(prompt, 0, -1);
    for (int n : completions) {
      std::vector<int32_t> completion(n);
      for (int32_t& t : completion) t = token();
      add(completion, prompt_length, prompt_segment);
      std::vector<int32_t> row = prompt;
      row.insert(row.end(), completion.begin(), completion.end());
      int64_t base = 0;
      for (const auto& r : g.rows) base += r.size();
      for (int i = 0; i < n; ++i) g.unshared_rows.push_back(base + prompt_length + i);
      g.rows.push_back(std::move(row));
    }
  }
  g.unshared = testing::PackRows(g.rows, 0);
  return g;
}

// Hidden states at `rows` after a backward through a fixed random direction.
at::Tensor RunAndDifferentiate(Transformer* model, const PackedBatch& batch,
                               const std::vector<int64_t>& rows) {
  model->ZeroGradients();
  absl::StatusOr<at::Tensor> hidden = model->Forward(batch);
  EXPECT_TRUE(hidden.ok()) << hidden.status();
  at::Tensor chosen = hidden->index_select(0, at::tensor(rows, at::kLong).to(model->device()));
  at::Generator generator = at::detail::createCPUGenerator(3);
  at::Tensor direction = at::empty(chosen.sizes(), at::kFloat);
  direction.normal_(0, 1, generator);
  (chosen * direction.to(model->device())).sum().backward();
  return chosen.detach().to(at::kCPU);
}

class PathTest : public ::testing::TestWithParam<std::tuple<std::string, Path>> {};

TEST_P(PathTest, SharedPromptGivesTheSameNumbersAsARowForEachCompletion) {
  const auto [type, path] = GetParam();
  const ModelConfig config = testing::SmallConfig(type);
  std::unique_ptr<Transformer> model = testing::MakeModel(config, path);
  const Groups g = MakeGroups(config, {{6, {3, 1, 40, 9}}, {1, {2}}, {70, {5, 33}}, {17, {1, 1}}});
  const at::Tensor a = RunAndDifferentiate(model.get(), g.unshared, g.unshared_rows);
  const at::Tensor grad = model->flat_gradients().clone();
  const at::Tensor b = RunAndDifferentiate(model.get(), g.shared, g.shared_rows);
  EXPECT_LT(MaxDifference(a, b), 1e-5);
  const double scale = grad.abs().max().item<double>();
  EXPECT_LT(MaxDifference(grad, model->flat_gradients()), 1e-5 * scale);
}

TEST_P(PathTest, GivesTheNumbersOfPlainOperatorsOnTheCpu) {
  const auto [type, path] = GetParam();
  const ModelConfig config = testing::SmallConfig(type);
  std::unique_ptr<Transformer> model = testing::MakeModel(config, path);
  std::unique_ptr<Transformer> reference = testing::MakeModel(config, Path::kOperators);
  const Groups g = MakeGroups(config, {{6, {3, 1, 40, 9}}, {1, {2}}, {70, {5, 33}}});
  const at::Tensor a = RunAndDifferentiate(model.get(), g.shared, g.shared_rows);
  const at::Tensor b = RunAndDifferentiate(reference.get(), g.shared, g.shared_rows);
  EXPECT_LT(MaxDifference(a, b), 1e-5);
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    const at::Tensor& expected = reference->parameters()[i].grad;
    EXPECT_LT(MaxDifference(model->parameters()[i].grad, expected),
              2e-5 * expected.abs().max().item<double>() + 1e-6)
        << model->parameters()[i].name;
  }
}

TEST_P(PathTest, SecondBackwardAddsToTheGradients) {
  const auto [type, path] = GetParam();
  const ModelConfig config = testing::SmallConfig(type);
  std::unique_ptr<Transformer> model = testing::MakeModel(config, path);
  const std::vector<std::vector<int32_t>> rows = {{1, 2, 3, 4, 5}, {6, 7, 8}};
  const PackedBatch batch = testing::PackRows(rows, 2);
  Backward(model.get(), rows, batch, 3);
  const at::Tensor once = model->flat_gradients().clone();
  EXPECT_GT(once.abs().max().item<double>(), 0.0);
  Backward(model.get(), rows, batch, 3);
  EXPECT_LT(MaxDifference(model->flat_gradients(), once * 2), 1e-5);
  model->ZeroGradients();
  EXPECT_EQ(model->flat_gradients().abs().max().item<double>(), 0.0);
}

INSTANTIATE_TEST_SUITE_P(
    All, PathTest,
    ::testing::Combine(::testing::Values("llama", "mistral", "qwen2", "qwen3", "qwen3_moe"),
                       ::testing::Values(Path::kFused, Path::kOperators, Path::kFakeDevice)),
    [](const auto& info) {
      return std::get<0>(info.param) + "_" + testing::PathName(std::get<1>(info.param));
    });

TEST(TransformerTest, ForwardAndBackwardOnADeviceSynchroniseNeverAndTransferAFixedNumberOfTimes) {
  const ModelConfig config = testing::SmallConfig("qwen3");
  std::unique_ptr<Transformer> model = testing::MakeModel(config, Path::kFakeDevice);
  model->flat_gradients();
  const PackedBatch batch = testing::PackRows({{1, 2, 3, 4, 5}, {6, 7, 8, 9}, {1, 2, 3, 4}}, 0);
  testing::ResetFakeDeviceCounts();
  absl::StatusOr<at::Tensor> hidden = model->Forward(batch);
  ASSERT_TRUE(hidden.ok()) << hidden.status();
  hidden->sum().backward();
  const testing::FakeDeviceCounts counts = testing::ReadFakeDeviceCounts();
  EXPECT_EQ(counts.synchronisations, 0);
  EXPECT_EQ(counts.to_host, 0);
  // Ids, rotary table, output rows, and three for the one bucket of attention.
  EXPECT_LE(counts.to_device, 6);
}

TEST(TransformerTest, SameSeedGivesTheSameWeightsOnEveryDevice) {
  const ModelConfig config = testing::SmallConfig("qwen3");
  auto a = Transformer::Create(config, 5, at::kCPU), b = Transformer::Create(config, 5, at::kCPU);
  auto c = Transformer::Create(config, 6, at::kCPU);
  auto d = Transformer::Create(config, 5, testing::FakeDevice());
  ASSERT_TRUE(a.ok() && b.ok() && c.ok() && d.ok());
  EXPECT_EQ(MaxDifference((*a)->flat_parameters(), (*b)->flat_parameters()), 0);
  EXPECT_EQ(MaxDifference((*a)->flat_parameters(), (*d)->flat_parameters()), 0);
  EXPECT_GT(MaxDifference((*a)->flat_parameters(), (*c)->flat_parameters()), 0);
  for (const NamedParameter& p : (*a)->parameters()) {
    if (p.name == "model.norm.weight") {
      EXPECT_EQ(MaxDifference(p.tensor, at::ones({24})), 0);
    }
  }
}

TEST(TransformerTest, CloneIsIndependentOfTheOriginal) {
  std::unique_ptr<Transformer> model =
      testing::MakeModel(testing::SmallConfig("qwen2"), Path::kFused);
  absl::StatusOr<std::unique_ptr<Transformer>> copy = model->Clone();
  ASSERT_TRUE(copy.ok()) << copy.status();
  const at::Tensor before = model->flat_parameters().clone();
  model->flat_parameters().add_(1);
  EXPECT_EQ(MaxDifference((*copy)->flat_parameters(), before), 0);
  EXPECT_EQ(MaxDifference((*copy)->weights().embed.flatten(),
                          before.narrow(0, 0, (*copy)->weights().embed.numel())),
            0);
}

TEST(TransformerTest, BadPackedBatchesAreRefusedByWhatIsWrongWithThem) {
  std::unique_ptr<Transformer> model =
      testing::MakeModel(testing::SmallConfig("llama"), Path::kFused);
  const struct {
    PackedBatch batch;
    const char* message;
  } cases[] = {
      {{}, "no tokens"},
      {{{1, 99}, {0, 1}, {{0, 2}}}, "token 1 of the packed batch is 99, vocabulary size is 37"},
      {{{1, -1}, {0, 1}, {{0, 2}}}, "is -1"},
      {{{1, 2}, {0}, {{0, 2}}}, "2 tokens but 1 positions"},
      {{{1, 2}, {0, -4}, {{0, 2}}}, "position of packed token 1 is -4"},
      {{{1, 2}, {0, 1}, {{0, 1}}}, "cover 1 of 2"},
      {{{1, 2}, {0, 1}, {{0, 1}, {0, 2}}}, "segment 1 is 0..2"},
      {{{1, 2}, {0, 1}, {{0, 1}, {1, 2, 1}}}, "segment 1 names segment 1 as its prefix"},
      {{{1, 2}, {0, 1}, {{0, 3}}}, "ends by 2"},
  };
  for (const auto& c : cases) {
    const absl::StatusOr<at::Tensor> hidden = model->Forward(c.batch);
    EXPECT_EQ(hidden.status().code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(hidden.status().message()), HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace millrace
