// The commands as parts of a pipe: what they do with input that is odd, output that nobody takes,
// and folders that are not what was meant.
#include <gmock/gmock.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/evaluation_run.h"
#include "cli/local_model.h"
#include "environments/task.h"
#include "tests/cli/model_commands_fixture.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Pair;
using Json = nlohmann::json;

class PipeTest : public ModelCommandsTest {};

const char* const kGenerate = "$M generate m --max-new-tokens 3 --threads 1 ";

TEST_F(PipeTest, OutputThatCannotBeWrittenIsAFailure) {
  Write("in", "\"a\"\n\"b\"\n");
  Write("chat", "[{\"role\": \"user\", \"content\": \"Hi\"}]\n");
  for (const char* command : {"$M tokenize m --text abc", "echo '[1]' | $M detokenize m",
                              "$M render m < chat", "$M score m --text abc --threads 1",
                              "$M inspect m", "$M data sums", "$M tasks", "$M version"}) {
    ExpectFailure(absl::StrCat(command, " > /dev/full"), 1, "writing to stdout");
  }
  ExpectFailure(absl::StrCat(kGenerate, "< in > /dev/full"), 1, "No space left");
  ExpectFailure("$M tokenize m --text abc >&-", 1, "writing to stdout");
  ExpectFailure(
      "$M eval m --task sums --problems 2 --k 1 --max-new-tokens 2 --threads 1 --json > /dev/full",
      1, "writing to stdout");
}

TEST_F(PipeTest, AReaderThatLeavesEndsTheCommand) {
  // Endless input: a command that went on would never end.
  const Result tokenize = Shell("yes '\"hello\"' | $M tokenize m | head -1");
  EXPECT_EQ(tokenize.lines.size(), 1u);
  const Result generate = Shell(absl::StrCat("yes '\"hello\"' | ", kGenerate, "| head -1"));
  EXPECT_EQ(generate.lines.size(), 1u);
}

TEST_F(PipeTest, LinesBeforeAWrongOneGetTheirAnswers) {
  Write("in", "\"a\"\n{bad\n\"b\"\n");
  const Result tokenize = Shell("$M tokenize m < in");
  EXPECT_EQ(tokenize.code, 1);
  EXPECT_EQ(tokenize.lines.size(), 1u);
  const Result generate = Shell(absl::StrCat(kGenerate, "< in"));
  EXPECT_EQ(generate.code, 1);
  ASSERT_EQ(generate.lines.size(), 1u);
  EXPECT_EQ(generate.lines[0]["index"], 0);
  EXPECT_THAT(generate.err, HasSubstr("line 2: not valid JSON"));
  // A prompt that is longer than the model takes is refused after the one before it was begun.
  Write("long", absl::StrCat("\"a\"\n\"", std::string(600, 'x'), "\"\n"));
  const Result longer = Shell(absl::StrCat(kGenerate, "< long"));
  EXPECT_EQ(longer.code, 1);
  EXPECT_EQ(longer.lines.size(), 1u);
  EXPECT_THAT(longer.err, HasSubstr("line 2: "));
}

TEST_F(PipeTest, InputOfAnyKindIsReadOrRefusedByLine) {
  Write("bytes", std::string("\xff\xfe\x00\x01\n", 5));
  Write("nested", absl::StrCat("{\"messages\": ", std::string(300000, '['),
                               std::string(300000, ']'), "}\n1\n"));
  Write("windows", "\xef\xbb\xbf\"a\"\r\n\r\n\"b\"");
  for (const char* command :
       {"tokenize", "detokenize", "render", "score --threads 1", "generate --threads 1"}) {
    const std::string run = absl::StrCat("$M ", command, " m < ");
    ExpectFailure(run + "bytes", 1, "line 1: not valid JSON");
    ExpectFailure(run + "nested", 1, "line 1: JSON nested 300001 deep (at most 200)");
    ExpectFailure(run + "/dev/null", 1, "nothing on stdin");
    ExpectFailure(absl::StrCat("$M ", command, " m <&-"), 1, "nothing on stdin");
  }
  EXPECT_EQ(Succeed("$M tokenize m < windows").lines.size(), 2u);
  // Endless input without an end of line ends all the same.
  ExpectFailure("$M tokenize m < /dev/zero", 1, "line 1: longer than the 67108864 bytes");
  ExpectFailure("$M render m < /dev/zero", 1, "more than 67108864 bytes on stdin");
}

TEST_F(PipeTest, FoldersThatAreNoModelSayWhy) {
  Write("m.gguf", "GGUF");
  Write("m.txt", "x");
  ExpectFailure("$M score m.gguf --text a", 1, "make one of it with `millrace import m.gguf DIR`");
  ExpectFailure("$M tokenize m.txt --text a", 1, "m.txt is a file, not a model folder");
  ExpectFailure("$M tokenize '' --text a", 1, "there is no folder \"\"");
  const std::pair<const char*, const char*> missing[] = {
      {"config.json", "neither a run"},
      {"tokenizer.json", "no tokenizer.json"},
      {"model.safetensors", "neither model.safetensors nor model.safetensors.index.json"}};
  for (const auto& [file, named] : missing) {
    ExpectFailure(absl::StrCat("cp -r m n && rm n/", file,
                               " && $M score n --text a; C=$?; rm -r n;", " exit $C"),
                  1, named);
  }
}

TEST_F(PipeTest, WhatCannotBeInspectedSaysWhy) {
  ExpectFailure("$M inspect nowhere", 1, "nowhere: no such folder or file");
  ExpectFailure("$M inspect m/model.safetensors", 1,
                "m/model.safetensors is one file of a model; give its folder (m)");
  ExpectFailure("cd m && $M inspect config.json", 1, "give its folder (.)");
  ExpectFailure("mkdir empty && $M inspect empty", 1,
                "empty is neither a run (checkpoints/latest) nor a model folder (config.json)");
  ExpectFailure("mkdir -p run/checkpoints && $M inspect run", 1,
                "the run in run has no checkpoint yet");
}

TEST_F(PipeTest, ATokenizerWithMoreIdsThanTheModelHasRowsIsRefused) {
  Succeed(absl::StrCat("cp -r m n && rm n/tokenizer*.json && cp ", MILLRACE_GOLDEN_DIR,
                       "/tokenizers/gpt2_digits/tokenizer.json n"));
  Write("ids", "{\"ids\": [65, 66]}\n");
  for (const char* command :
       {"score n --text a", "score n < ids", "generate n --prompt a", "generate n < ids",
        "eval n --task sums --problems 1", "chat n --once a"}) {
    ExpectFailure(absl::StrCat("$M ", command), 1, "n/tokenizer.json: the tokenizer has ");
  }
  // Needs no model.
  EXPECT_EQ(Succeed("$M tokenize n --text a").lines.size(), 1u);
  const Json inspected = Succeed("$M inspect n").lines.at(0);
  EXPECT_EQ(inspected["supported"], false);
  EXPECT_THAT(inspected["unsupported"].get<std::string>(), HasSubstr("only 259 rows"));
}

TEST_F(PipeTest, FlagsOutsideTheirRangeAreRefused) {
  for (const char* flags :
       {"score m --text a --threads -3", "generate m --prompt a --threads 5000",
        "eval m --task sums --k 0", "eval m --task sums --problems -2",
        "eval m --task sums --show -1", "eval m --task sums --max-new-tokens -5"}) {
    ExpectFailure(absl::StrCat("$M ", flags), 2, "");
  }
  for (const char* command : {"generate m --prompt a", "eval m --task sums", "chat m --once a"}) {
    ExpectFailure(absl::StrCat("$M ", command, " --seed -1"), 2, "a seed is not negative, not -1");
  }
}

TEST_F(PipeTest, RemarksGoToStderrAndTheReportStaysJson) {
  Json config = Json::parse(Read("m/config.json"));
  config["training_notes"] = "run 7";
  Write("m/config.json", config.dump());
  const Result scored = Succeed("$M score m --text abc --threads 1");
  EXPECT_EQ(scored.lines.size(), 1u);
  EXPECT_THAT(scored.err, AllOf(HasSubstr("millrace: m/config.json: fields not known here have no "
                                          "effect: training_notes"),
                                Not(HasSubstr("loading"))));  // which was quick
  EXPECT_EQ(Succeed("$M inspect m").lines.at(0)["ignored_fields"], Json({"training_notes"}));
  ExpectFailure("$M eval m --task sums --problems 1 --json no/such/file", 1, "no/such");
  EXPECT_EQ(Shell("$M eval m --task sums --problems 1 --json no/such/file").out, "");  // no work
  // A path that is no UTF-8 is no reason to fail after all the work.
  const Result eval = Succeed(
      "cp -r m $(printf 'n\\377') && $M eval $(printf 'n\\377') --task sums --problems 1 --k 1 "
      "--max-new-tokens 2 --threads 1 --json");
  ASSERT_EQ(eval.lines.size(), 1u);
  EXPECT_EQ(eval.lines[0]["problems"], 1);
  config["attention_temperature"] = 0.5;
  Write("m/config.json", config.dump());
  ExpectFailure("$M score m --text abc", 1, "\"attention_temperature\" 0.5");
}

TEST_F(PipeTest, TheProgressOfAnEvaluationIsHeardOfFromTheStart) {
  TaskOptions sums;
  sums.name = "sums";
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Task> task, MakeTask(sums));
  EvaluationSettings settings;
  settings.model = Path("m");
  settings.problems = 2;
  settings.samples = 1;
  settings.max_new_tokens = 2;
  settings.threads = 1;
  std::vector<std::pair<int64_t, int64_t>> heard;
  EvaluationCallbacks callbacks;
  callbacks.on_progress = [&](int64_t done, int64_t total) { heard.emplace_back(done, total); };
  ASSERT_OK(EvaluateModel(*task, settings, callbacks));
  EXPECT_THAT(heard, ElementsAre(Pair(0, 4), Pair(1, 4), Pair(2, 4), Pair(3, 4), Pair(4, 4)));
}

TEST_F(PipeTest, TheLoadingOfALocalModelIsHeardOf) {
  double last = 0;
  LocalModelOptions options;
  options.threads = 1;
  options.progress = [&](double fraction) { last = fraction; };
  EXPECT_TRUE(LoadLocalModel(Path("m"), options).ok());
  EXPECT_EQ(last, 1);
}

}  // namespace
}  // namespace millrace
