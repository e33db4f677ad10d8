// The commands that take a model: the real program on a very small model of random weights.
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/cli/model_commands_fixture.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

TEST_F(ModelCommandsTest, TextGoesToTokensAndBackThroughAPipe) {
  const Result ids = Succeed("$M tokenize m --text 'ab\u00e4'");
  ASSERT_EQ(ids.lines.size(), 1u);
  EXPECT_EQ(ids.lines[0]["ids"].size(), 4u);  // a byte each
  Write("in", "\"x y\"\n\n{\"text\": \"z\\n\u4f60\"}\n");
  const Result there_and_back = Succeed("$M tokenize m < in | $M detokenize m");
  ASSERT_EQ(there_and_back.lines.size(), 2u);
  EXPECT_EQ(there_and_back.lines[0]["text"], "x y");
  EXPECT_EQ(there_and_back.lines[1]["text"], "z\n\u4f60");
  const Result plain = Succeed("$M tokenize m --text '<|im_end|>'");
  const Result special = Succeed("$M tokenize m --special --text '<|im_end|>'");
  EXPECT_EQ(plain.lines[0]["ids"].size(), 10u);
  EXPECT_EQ(special.lines[0]["ids"].size(), 1u);
}

TEST_F(ModelCommandsTest, ALineThatIsWrongIsNamed) {
  Write("bad", "\"fine\"\n\nnot json\n");
  ExpectFailure("$M tokenize m < bad", 1, "line 3: not valid JSON");
  ExpectFailure("$M tokenize m", 1, "nothing on stdin");
  ExpectFailure("echo '{\"txt\": 1}' | $M tokenize m", 1, "line 1: \"text\" is not a string");
  ExpectFailure("echo '[1, 999]' | $M detokenize m", 1, "token id 999 at 1 is not one of 0 to 258");
  ExpectFailure("echo '[-1]' | $M detokenize m", 1, "token id -1");
  ExpectFailure("echo '{}' | $M detokenize m", 1, "no \"ids\"");
  ExpectFailure("echo '{}' | $M generate m", 1, "line 1: no \"prompt\"");
  ExpectFailure("echo '{\"ids\": [300]}' | $M score m", 1, "token id 300");
  ExpectFailure("echo '{\"ids\": [3]}' | $M score m", 1,
                "line 1: there is nothing to score in 1 token");
  ExpectFailure("$M score m --text ''", 1,
                "there is nothing to score in 0 tokens: of a text all but");
  for (const char* line : {"12", "[\"a\",\"b\"]"}) {
    ExpectFailure(absl::StrCat("echo '", line, "' | $M tokenize m"), 1,
                  "line 1: neither a JSON string nor {\"text\": \"...\"}");
  }
  ExpectFailure("echo '{\"messages\": 1}' | $M generate m", 1, "line 1: ");
  ExpectFailure("echo 5 | $M render m", 1, "millrace: ");
  ExpectFailure("$M tokenize nowhere --text x", 1, "there is no folder nowhere");
  ExpectFailure("$M score m --text x --device gpu", 1, "--device");
  ExpectFailure("$M generate m --prompt x --top-p 2", 2, "top-p");
}

TEST_F(ModelCommandsTest, RenderGivesTextAndTokensOfAConversation) {
  Write("chat", "[{\"role\": \"user\",\n \"content\": \"Hi <|im_end|>\"}]\n");
  const Result open = Succeed("$M render m < chat");
  ASSERT_EQ(open.lines.size(), 1u);
  EXPECT_THAT(open.lines[0]["text"].get<std::string>(),
              AllOf(HasSubstr("Hi "), HasSubstr("assistant\n")));
  EXPECT_EQ(open.lines[0]["ids"].size(), open.lines[0]["assistant_mask"].size());
  const Result closed = Succeed("$M render m --no-generation-prompt < chat");
  EXPECT_LT(closed.lines[0]["ids"].size(), open.lines[0]["ids"].size());
  // The user's text is no control token: one turn begins and ends, and the assistant's begins.
  int control = 0;
  for (const int id : open.lines[0]["ids"]) control += id >= 256 ? 1 : 0;
  EXPECT_EQ(control, 3);
}

TEST_F(ModelCommandsTest, OnlyASingleConversationMaySpanLines) {
  const std::string one = "[{\"role\": \"user\",\n \"content\": \"Hi\"}]\n";
  Write("two", one + one);
  ExpectFailure("$M render m < two", 1,
                "line 1: not valid JSON; of several conversations each is on one line");
}

TEST_F(ModelCommandsTest, APromptMayBeAsLongAsTheContext) {
  Json config = Json::parse(Read("m/config.json"));
  config["max_position_embeddings"] = 8192;
  Write("m/config.json", config.dump());
  const std::string flags = " --max-new-tokens 3 --temperature 0 --threads 1 ";
  const std::string prompt(5000, 'x');
  const Result generated = Succeed("$M generate m -n 2" + flags + "--prompt " + prompt);
  ASSERT_EQ(generated.lines.size(), 2u);
  EXPECT_EQ(generated.lines[0]["prompt_tokens"], 5000);
  Succeed("$M chat m" + flags + "--once " + prompt);
  const std::string longer(8190, 'x');
  ExpectFailure("$M generate m" + flags + "--prompt " + longer, 1,
                "exceed the maximum context length of 8192");
  ExpectFailure("$M chat m" + flags + "--once " + longer + "xx", 1,
                "longer than the 8192 there is room for");
}

TEST_F(ModelCommandsTest, GenerateKeepsTheOrderAndRepeatsWithTheSeed) {
  Write("in", "\"one\"\n{\"prompt\": \"two\"}\n{\"ids\": [65, 66]}\n");
  const std::string flags = " -n 2 --max-new-tokens 6 --threads 1 --logprobs ";
  const Result all = Succeed("$M generate m" + flags + "--seed 3 < in");
  ASSERT_EQ(all.lines.size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(all.lines[i]["index"], i / 2);
    EXPECT_EQ(all.lines[i]["sample"], i % 2);
    EXPECT_EQ(all.lines[i]["ids"].size(), all.lines[i]["logprobs"].size());
    EXPECT_LE(all.lines[i]["tokens"], 6);
  }
  EXPECT_NE(all.lines[0]["ids"], all.lines[1]["ids"]);
  EXPECT_EQ(Succeed("$M generate m" + flags + "--seed 3 < in").out, all.out);
  EXPECT_NE(Succeed("$M generate m" + flags + "--seed 4 < in").out, all.out);
  const Result alone = Succeed("$M generate m --prompt one" + flags + "--seed 3");
  EXPECT_EQ(alone.lines[0]["ids"], all.lines[0]["ids"]);
  const Result greedy =
      Succeed("$M generate m --prompt one -n 2 --temperature 0 --max-new-tokens 5");
  EXPECT_EQ(greedy.lines[0]["ids"], greedy.lines[1]["ids"]);
}

TEST_F(ModelCommandsTest, ScoreAgreesWithTheSampler) {
  const Result sampled =
      Succeed("$M generate m --prompt abc --max-new-tokens 8 --logprobs --seed 1 --threads 1");
  const Json& sample = sampled.lines.at(0);
  Json ids = {97, 98, 99};
  for (const int id : sample["ids"]) ids.push_back(id);
  Write("in", Json{{"ids", ids}}.dump() + "\n");
  const Result scored = Succeed("$M score m --threads 1 < in");
  const Json& logprobs = scored.lines.at(0)["logprobs"];
  ASSERT_EQ(logprobs.size(), ids.size());
  EXPECT_TRUE(logprobs[0].is_null());
  double sum = logprobs[1].get<double>() + logprobs[2].get<double>();
  for (size_t i = 0; i < sample["ids"].size(); ++i) {
    EXPECT_NEAR(logprobs[3 + i].get<double>(), sample["logprobs"][i].get<double>(), 1e-4) << i;
    sum += logprobs[3 + i].get<double>();
  }
  EXPECT_NEAR(scored.lines[0]["sum"].get<double>(), sum, 1e-4);
  EXPECT_NEAR(scored.lines[0]["perplexity"].get<double>(),
              std::exp(-sum / static_cast<double>(ids.size() - 1)), 1e-3);
  const Result completion =
      Succeed("echo '{\"prompt\": \"abc\", \"completion\": \"de\"}' | $M score m --threads 1");
  EXPECT_EQ(completion.lines[0]["scored"], 2);
  EXPECT_TRUE(completion.lines[0]["logprobs"][2].is_null());
  const Result text = Succeed("$M score m --text abcde --threads 1");
  EXPECT_EQ(text.lines[0]["scored"], 4);
  EXPECT_NEAR(text.lines[0]["logprobs"][4].get<double>(),
              completion.lines[0]["logprobs"][4].get<double>(), 1e-5);
}

TEST_F(ModelCommandsTest, InspectSaysWhatTheModelIsAndWhatItTakes) {
  const Result result = Succeed("$M inspect m");
  const Json& json = result.lines.at(0);
  EXPECT_EQ(json["architecture"], "qwen3");
  EXPECT_EQ(json["vocab_size"], 259);
  EXPECT_GT(json["parameters"].get<int64_t>(), 10000);
  for (const char* field : {"trains", "samples", "trains_and_samples"}) {
    EXPECT_TRUE(json["fits"][0][field].get<bool>()) << field;
  }
}

TEST_F(ModelCommandsTest, AnAdaptersFolderIsAModelToo) {
  const std::string golden = MILLRACE_GOLDEN_DIR "/models/";
  Succeed(absl::StrCat("cp -r ", golden, "qwen3_tied ", golden, "lora_qwen3_tied . && ",
                       "chmod -R u+w qwen3_tied && cp m/tokenizer* qwen3_tied"));
  const auto sum = [this](const std::string& model) {
    const Result scored = Succeed("$M score " + model + " --text abc --threads 1");
    return scored.lines.at(0)["sum"].get<double>();
  };
  EXPECT_GT(std::abs(sum("lora_qwen3_tied") - sum("qwen3_tied")), 1e-3);
  EXPECT_EQ(Succeed("$M tokenize lora_qwen3_tied --text abc").out,
            Succeed("$M tokenize qwen3_tied --text abc").out);
  Succeed("$M generate lora_qwen3_tied --prompt abc --max-new-tokens 3 --threads 1");
}

TEST_F(ModelCommandsTest, EvalReportsGreedyAndPassAtKWithAdvice) {
  const std::string eval =
      "$M eval m --task sums --problems 30 --k 4 --max-new-tokens 6 --threads 1 --seed 2 ";
  const Result result = Succeed(eval + "--samples-file samples.jsonl --show 1 --json");
  ASSERT_EQ(result.lines.size(), 1u);
  const Json& json = result.lines[0];
  EXPECT_EQ(json["task"], "sums");
  EXPECT_EQ(json["greedy"]["samples"], 30);
  EXPECT_EQ(json["sampled"]["samples"], 120);
  EXPECT_EQ(json["pass_at"].size(), 3u);
  EXPECT_EQ(json["pass_at"].back()["k"], 4);
  EXPECT_EQ(json["advice"]["verdict"], "cut_off");
  EXPECT_THAT(result.err, AllOf(HasSubstr("problem 0, expects: "), HasSubstr("[greedy, wrong")));
  std::vector<std::string> samples = absl::StrSplit(Read("samples.jsonl"), '\n', absl::SkipEmpty());
  EXPECT_EQ(samples.size(), 150u);
  const Json first = Json::parse(samples[0], nullptr, false);
  for (const char* key : {"problem", "mode", "prompt", "completion", "reference", "reward"}) {
    EXPECT_TRUE(first.contains(key)) << key;
  }
  Succeed(eval + "--json report.json");
  const Json written = Json::parse(Read("report.json"), nullptr, false);
  EXPECT_EQ(written["sampled"], json["sampled"]);
  const Result text = Succeed(eval);
  EXPECT_THAT(text.out, AllOf(HasSubstr("pass@4"), HasSubstr("advice (cut_off)")));
  EXPECT_FALSE(Succeed("$M eval m --task sums --problems 3 --greedy --max-new-tokens 4 --json")
                   .lines.at(0)
                   .contains("sampled"));
}

// Half of the answers of a model of random weights are right here.
TEST_F(ModelCommandsTest, EvalCountsTheGroupsWhoseRewardsDiffer) {
  std::string rows;
  for (int i = 0; i < 40; ++i) {
    absl::StrAppend(&rows, "{\"question\": \"number ", i, "?\", \"answer\": \"", i % 2, "\"}\n");
  }
  Write("d.jsonl", rows);
  const Result result = Succeed(
      "$M eval m --task dataset --set data.files=d.jsonl --set data.near_duplicates=0"
      " --set data.eval_fraction=0.5 --set data.verifier=regex --set data.pattern='([01])'"
      " --no-greedy --k 2 --max-new-tokens 100 --threads 1 --json --samples-file samples.jsonl");
  std::map<int, std::set<double>> rewards;
  for (const absl::string_view line :
       absl::StrSplit(Read("samples.jsonl"), '\n', absl::SkipEmpty())) {
    const Json sample = Json::parse(line, nullptr, false);
    rewards[sample["problem"]].insert(sample["reward"].get<double>());
  }
  double mixed = 0;
  for (const auto& [problem, seen] : rewards) mixed += seen.size() > 1 ? 1 : 0;
  EXPECT_GT(mixed, 0);
  EXPECT_LT(mixed, rewards.size());
  EXPECT_EQ(result.lines.at(0)["mixed_groups"]["value"],
            mixed / static_cast<double>(rewards.size()));
}

TEST_F(ModelCommandsTest, EvalTakesDatasetsAndMixturesFromFlags) {
  std::string rows;
  for (int i = 0; i < 60; ++i) {
    absl::StrAppend(&rows, "{\"question\": \"number ", i, "?\", \"answer\": \"", i, "\"}\n");
  }
  Write("d.jsonl", rows);
  Write("d.toml", "[data]\nfiles = [\"d.jsonl\"]\nnear_duplicates = 0\neval_fraction = 0.2\n");
  const std::string flags = " --k 2 --problems 1000 --max-new-tokens 3 --threads 1 --json";
  const Result file = Succeed("$M eval m --task d.toml" + flags);
  EXPECT_LT(file.lines.at(0)["problems"].get<int>(), 40);  // there are no more
  EXPECT_THAT(file.err, HasSubstr("held out"));
  const Result set = Succeed(
      "$M eval m --task dataset --set data.files=d.jsonl"
      " --set data.near_duplicates=0 --set data.eval_fraction=0.2" +
      flags);
  EXPECT_EQ(set.lines.at(0)["sampled"], file.lines.at(0)["sampled"]);
  const Result mixture = Succeed(
      "$M eval m --task mixture --set task.parts=sums,d.toml --k 2 --problems 8 "
      "--max-new-tokens 3 --threads 1 --json");
  EXPECT_EQ(mixture.lines.at(0)["by_source"]["sums"]["sampled"]["problems"], 4);
  EXPECT_EQ(mixture.lines.at(0)["by_source"]["d.toml"]["greedy"]["problems"], 4);
  ExpectFailure("$M eval m --task mixture --set task.parts=sums,none", 1, "no task \"none\"");
  ExpectFailure("$M eval m --task dataset", 1, "task dataset has no files");
  ExpectFailure("$M eval m --task dataset --set data.files=none.jsonl", 1, "none.jsonl");
  ExpectFailure("$M eval m --task sums --set data.verifier=judge", 2, "data.verifier");
  ExpectFailure("$M eval m --task sums --greedy --no-greedy", 2, "leave nothing to do");
  ExpectFailure("$M eval m --task sums --problems 1 --samples-file no/dir/x", 1, "cannot write");
  ExpectFailure("$M eval m", 2, "--task must be given");
}

std::string Numbers() {
  std::string rows;
  for (int i = 0; i < 60; ++i) {
    absl::StrAppend(&rows, "{\"question\": \"number ", i, "?\", \"answer\": \"", i, "\"}\n");
  }
  return rows;
}

const char* const kQuickEval = " --greedy --problems 100 --max-new-tokens 1 --threads 1 --json";

TEST_F(ModelCommandsTest, EvalTakesTheConfigOfARunAndWhatSetPutsOnTop) {
  Write("d.jsonl", Numbers());
  Write("d.toml", "[data]\nfiles = [\"d.jsonl\"]\nnear_duplicates = 0\neval_fraction = 0.2\n");
  Write("run.toml", "[task]\nname = \"dates\"\n");
  const Result run = Succeed(absl::StrCat("$M eval m --task run.toml", kQuickEval));
  EXPECT_EQ(run.lines.at(0)["task"], "dates");
  const Result few = Succeed(absl::StrCat("$M eval m --task d.toml", kQuickEval));
  const Result more =
      Succeed(absl::StrCat("$M eval m --task d.toml --set data.eval_fraction=0.8", kQuickEval));
  EXPECT_GT(more.lines.at(0)["problems"].get<int>(), 2 * few.lines.at(0)["problems"].get<int>());
  ExpectFailure("$M eval m --task sums --set data.verifier=json", 1,
                "data.verifier is set, but task sums");
  ExpectFailure("$M eval m --task sums --set task.name=dates", 2,
                "--set task.name=dates contradicts the task that is asked for, sums");
}

TEST_F(ModelCommandsTest, EvalKeepsTheDataOfARunToItsOwnTask) {
  Write("d.jsonl", Numbers());
  Succeed(
      "mkdir -p r/checkpoints && cp -r m r/checkpoints/step-1 && echo step-1 > "
      "r/checkpoints/latest");
  Write("r/config.toml",
        "[task]\nname = \"dataset\"\ndigest = \"0\"\n"
        "[data]\nfiles = [\"d.jsonl\"]\nnear_duplicates = 0\n");
  const Result sums = Succeed(absl::StrCat("$M eval r --task sums", kQuickEval));
  EXPECT_EQ(sums.lines.at(0)["task"], "sums");
  Succeed(
      "$M eval r --task gsm8k --set 'data.prompt=Solve: {question}' --problems 1 --greedy "
      "--max-new-tokens 1 --threads 1 --samples-file gsm8k.jsonl");
  EXPECT_THAT(Read("gsm8k.jsonl"), HasSubstr("Solve: Britany"));
  ExpectFailure(absl::StrCat("$M eval r", kQuickEval), 1, "task.digest");
  // Problems that are others on purpose have no digest to agree with.
  Succeed(absl::StrCat("$M eval r --set data.eval_fraction=0.5", kQuickEval));
}

TEST_F(ModelCommandsTest, DataShowsADatasetWithoutAModel) {
  const Result gsm8k = Succeed("$M data gsm8k");
  EXPECT_EQ(gsm8k.lines.at(0)["held_out"], 1319);
  EXPECT_EQ(gsm8k.lines.at(0)["digest"].get<std::string>().size(), 16u);
  EXPECT_THAT(gsm8k.lines[0]["example"]["messages"][0]["content"].get<std::string>(),
              HasSubstr("####"));
  EXPECT_FALSE(Succeed("$M data dates").lines.at(0).contains("held_out"));
  Write("d.jsonl", "{\"question\": \"a\"}\n");
  Write("d.toml", "[data]\nfiles = [\"d.jsonl\"]\n");
  ExpectFailure("$M data d.toml", 1, "d.jsonl:1: no column \"answer\"; there are: question");
  ExpectFailure("$M data none.toml", 1, "none.toml");
}

TEST_F(ModelCommandsTest, DataShowsWhatSetChanges) {
  const Json plain = Succeed("$M data gsm8k").lines.at(0);
  const Json other = Succeed("$M data gsm8k --set data.system=Brief.").lines.at(0);
  EXPECT_NE(other["digest"], plain["digest"]);
  ExpectFailure("$M data gsm8k --set data.verifier=json", 1, "train.jsonl:1: the answer is not");
  const Json file = Succeed(absl::StrCat("$M data ", MILLRACE_SOURCE_DIR,
                                         "/data/gsm8k/dataset.toml --set data.near_duplicates=0.2"))
                        .lines.at(0);
  EXPECT_LT(file["train"].get<int>(), plain["train"].get<int>());
  ExpectFailure("$M data gsm8k --set data.verifier=exact", 1,
                "data.verifier: --set gives its default");
  ExpectFailure("$M data gsm8k --set task.name=dates", 1, "--set task.name=dates contradicts");
  ExpectFailure("$M data sums --set data.verifier=json", 1, "data.verifier is set, but task sums");
  // From any folder.
  const Json card =
      Succeed(absl::StrCat("$M data ", MILLRACE_SOURCE_DIR, "/configs/cards/gsm8k-qwen3-0.6b.toml"))
          .lines.at(0);
  EXPECT_EQ(card["held_out"], 1319);
  EXPECT_THAT(card["example"]["messages"][0]["content"].get<std::string>(),
              ::testing::EndsWith("\"####\". /no_think"));
}

}  // namespace
}  // namespace millrace
