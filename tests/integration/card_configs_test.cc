// The configs for cards that this machine lacks: two steps of each with a very small model of the
// same architecture, on the CPU. Rewards of random weights never vary on a real task, so the task
// is coin_sums; the problems of the configured one are loaded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/run_harness.h"

namespace millrace::testing {
namespace {

struct Card {
  const char* name;
  const char* architecture;
};
void PrintTo(const Card& card, std::ostream* out) { *out << card.name; }

std::string CardFile(const std::string& name) {
  return absl::StrCat(MILLRACE_SOURCE_DIR, "/configs/cards/", name, ".toml");
}

// Two steps on the CPU; `model` says which small model.
std::vector<std::string> TwoSteps(std::vector<std::string> model) {
  std::vector<std::string> overrides = {"model.device=cpu",         "rollout.devices=",
                                        "task.name=coin_sums",      "run.steps=2",
                                        "learner.warmup_steps=1",   "learner.threads=1",
                                        "eval.problems=0",          "eval.every=0",
                                        "rollout.servers=2",        "rollout.max_prompt_tokens=64",
                                        "rollout.max_new_tokens=8", "rollout.kv_tokens=16384"};
  overrides.insert(overrides.end(), model.begin(), model.end());
  return overrides;
}

std::vector<std::string> SmallModel(const std::string& architecture) {
  return {"model.path=",           "model.architecture=" + architecture,
          "model.hidden_size=32",  "model.layers=2",
          "model.heads=4",         "model.kv_heads=2",
          "model.head_dim=8",      "model.intermediate_size=48",
          "model.max_position=256"};
}

void RunTwoSteps(TrainRun& run) {
  run.Start();
  const auto code = run.WaitForEnd();
  ASSERT_TRUE(code.ok()) << code.status() << run.Output();
  ASSERT_EQ(*code, 0) << run.Output();
  ASSERT_EQ(run.Metrics().size(), 2u);
  for (const auto& row : run.Metrics()) {
    EXPECT_LT(row["logprob_diff_max"].get<double>(), 1e-3) << row["step"];
  }
}

class CardConfigs : public ::testing::TestWithParam<Card> {
 protected:
  static std::string File() { return CardFile(GetParam().name); }
};

TEST_P(CardConfigs, TwoStepsRunWithASmallModelOfTheArchitecture) {
  TrainRun run(TwoSteps(SmallModel(GetParam().architecture)), File());
  RunTwoSteps(run);
}

// Llama 3's rope is in a model's config.json only: the small model's is changed to it.
TEST(CardConfigsLlama3, TwoStepsRunWithTheRopeOfTheModel) {
  const std::string file = CardFile("gsm8k-llama-3.2-1b");
  TrainRun first(TwoSteps(SmallModel("llama")), file);
  RunTwoSteps(first);
  const std::string checkpoints = first.dir() + "/checkpoints/";
  std::string latest = ReadWhole(checkpoints + "latest");
  absl::StripAsciiWhitespace(&latest);
  const std::string model = checkpoints + latest;
  nlohmann::json config = nlohmann::json::parse(ReadWhole(model + "/config.json"));
  const nlohmann::json rope = {{"rope_type", "llama3"},   {"rope_theta", 500000.0},
                               {"factor", 32.0},          {"low_freq_factor", 1.0},
                               {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 64}};
  config["rope_parameters"] = rope;
  config["rope_theta"] = 500000.0;
  config["rope_scaling"] = rope;
  config["rope_scaling"].erase("rope_theta");
  std::ofstream(model + "/config.json") << config.dump(2);
  TrainRun second(TwoSteps({"model.path=" + model}), file);
  RunTwoSteps(second);
}

TEST_P(CardConfigs, TheProblemsAreThere) {
  const CommandResult result = RunCommand(
      {"/bin/sh", "-c",
       absl::StrCat("cd ", MILLRACE_SOURCE_DIR, " && ", Program("millrace"), " data ", File())},
      absl::Minutes(5));
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, ::testing::HasSubstr("\"held_out\":1319"));
}

INSTANTIATE_TEST_SUITE_P(All, CardConfigs,
                         ::testing::Values(Card{"gsm8k-qwen3-0.6b", "qwen3"},
                                           Card{"gsm8k-qwen3-0.6b-8-cards", "qwen3"},
                                           Card{"gsm8k-qwen2.5-0.5b", "qwen2"},
                                           Card{"gsm8k-qwen2.5-1.5b", "qwen2"},
                                           Card{"gsm8k-llama-3.2-1b", "llama"}),
                         [](const auto& info) {
                           std::string name;
                           for (const char c : std::string(info.param.name)) {
                             name += isalnum(c) ? c : '_';
                           }
                           return name;
                         });

}  // namespace
}  // namespace millrace::testing
