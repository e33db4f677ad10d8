// The `millrace` program itself, on input that is wrong: a clear message, a non-zero exit code, and
// nothing half-written.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "cli/local_model.h"
#include "common/http_server.h"
#include "model/tokenizer.h"
#include "tests/cli/temp_dir_test.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kConfig[] = "[rollout]\nmax_prompt_tokens = 64\n[task]\nname = \"sums\"\n";

class CommandsTest : public TempDirTest {
 protected:
  struct Result {
    int code = -1;
    std::string output;  // both streams
  };
  Result Run(const std::string& args) {
    Result result;
    const std::string command =
        absl::StrCat("cd ", dir_, " && ", MILLRACE_BIN_DIR, "/millrace ", args, " 2>&1 </dev/null");
    result.code = RunShell(command, &result.output);
    return result;
  }
  void ExpectFailure(const std::string& args, int code, const std::string& text) {
    const Result result = Run(args);
    EXPECT_EQ(result.code, code) << args << "\n" << result.output;
    EXPECT_THAT(result.output, HasSubstr(text)) << args;
  }
};

TEST_F(CommandsTest, VersionTasksAndHelpWork) {
  EXPECT_THAT(Run("version").output, HasSubstr("millrace 0."));
  EXPECT_THAT(Run("tasks").output, AllOf(HasSubstr("log_json"), HasSubstr("sums")));
  EXPECT_EQ(Run("--help").code, 0);
  EXPECT_EQ(Run("").code, 2);
  EXPECT_EQ(Run("no-such-command").code, 2);
}

TEST_F(CommandsTest, ConfigCheckSaysOkOrWhatIsWrong) {
  Write("good.toml", kConfig);
  Write("bad.toml", "[learner]\nlrr = 1\n");
  EXPECT_EQ(Run("config check good.toml").code, 0);
  ExpectFailure("config check bad.toml", 2, "bad.toml:2: learner.lrr: unknown field; did you mean");
  ExpectFailure("config check good.toml --set run.steps=x --set learner.loss=ppo", 2,
                "--set learner.loss=ppo: learner.loss");
  ExpectFailure("config check missing.toml", 2, "missing.toml");
  ExpectFailure("config check good.toml --set rollout.kv_tokens=1000000000000", 2,
                "rollout.kv_tokens: 1000000000000 is not valid");
  ExpectFailure("config check good.toml --set rollout.kv_tokens=1000000000", 2,
                "good.toml: rollout.kv_tokens: 1000000000 tokens of this model take");
}

TEST_F(CommandsTest, ConfigCheckSaysWhatTrainWouldRefuse) {
  Write("c.toml", kConfig);
  Write("few.jsonl", "{\"question\": \"a\", \"answer\": \"1\"}\n");
  const std::string check = "config check c.toml --set ";
  ExpectFailure(check + "task.name=nope", 2, "c.toml: no task \"nope\"; there are: calculator");
  ExpectFailure(check + "task.name=dataset --set data.files=none.jsonl", 2, "none.jsonl");
  ExpectFailure(check + "task.name=dataset", 2, "task dataset has no files");
  ExpectFailure(check + "task.name=mixture --set task.parts=zzz", 2, "no task \"zzz\"");
  ExpectFailure(check + "task.name=gsm8k --set eval.problems=2000", 2, "lower eval.problems");
  ExpectFailure(check + "data.files=few.jsonl", 2, "data.files is set, but task sums");
  ExpectFailure(check + "rollout.max_prompt_tokens=2", 2, "rollout.max_prompt_tokens is 2");
  ExpectFailure(check + "model.vocab_size=100", 2, "the byte tokenizer needs at least");
}

TEST_F(CommandsTest, ConfigCheckLooksAtAModelThatIsThere) {
  Write("c.toml", kConfig);
  const std::string model = absl::StrCat(MILLRACE_GOLDEN_DIR, "/models/llama_untied");
  ASSERT_OK(MakeDirectories(Path("m")));
  ASSERT_OK_AND_ASSIGN(const std::string config, ReadFile(model + "/config.json"));
  Write("m/config.json", config);
  const std::string flags = "--set model.path=m --set rollout.max_prompt_tokens=";
  ExpectFailure("config check c.toml " + flags + "200", 2, "m/tokenizer.json is missing");
  ASSERT_OK(Tokenizer::Bytes()->Save(Path("m")));
  const Result good = Run("config check c.toml " + flags + "208");
  EXPECT_EQ(good.code, 0) << good.output;
  const std::string message =
      "rollout.max_prompt_tokens: 209 with rollout.max_new_tokens 48 exceeds the 256 positions of "
      "the model; valid: together at most 256";
  ExpectFailure("config check c.toml " + flags + "209", 2, message);
  ExpectFailure("train c.toml --run-dir run " + flags + "209", 1, message);
  EXPECT_FALSE(FileExists(Path("run")));
  const Result later = Run("config check c.toml --set model.path=models/later");
  EXPECT_EQ(later.code, 0) << later.output;
  EXPECT_THAT(later.output,
              AllOf(HasSubstr("model.path: models/later is not there"), HasSubstr("c.toml: ok\n")));
}

TEST_F(CommandsTest, ConfigCheckTakesADatasetForWhatItIs) {
  std::string rows;
  for (int i = 0; i < 40; ++i) {
    absl::StrAppend(&rows, "{\"question\": \"q ", i, "\", \"answer\": 1}\n");
  }
  Write("d.jsonl", rows);
  Write("d.toml", "[data]\nfiles = [\"d.jsonl\"]\nnear_duplicates = 0\n");
  const Result good = Run("config check d.toml");
  EXPECT_EQ(good.code, 0) << good.output;
  EXPECT_THAT(good.output, HasSubstr("d.toml: ok as a dataset"));
  ExpectFailure("config check d.toml --set data.answer=label", 2, "no column \"label\"");
  ExpectFailure("train d.toml --run-dir run", 1, "data.files is set, but task log_json");
  EXPECT_FALSE(FileExists(Path("run")));
}

TEST_F(CommandsTest, EveryConfigOfTheTreeIsGood) {
  namespace fs = std::filesystem;
  int configs = 0;
  for (const auto& entry : fs::recursive_directory_iterator(MILLRACE_SOURCE_DIR "/configs")) {
    if (entry.path().extension() != ".toml") continue;
    const Result result = Run("config check " + entry.path().string());
    EXPECT_EQ(result.code, 0) << entry.path() << "\n" << result.output;
    ++configs;
  }
  EXPECT_GE(configs, 12);
}

TEST_F(CommandsTest, APrintedConfigIsAConfig) {
  Write("c.toml", kConfig);
  const Result printed = Run("config print c.toml --set run.seed=7");
  EXPECT_EQ(printed.code, 0);
  ASSERT_OK_AND_ASSIGN(const RunConfig config, ParseConfig(printed.output, "printed"));
  EXPECT_EQ(config.run.seed, 7);
  EXPECT_EQ(config.task.name, "sums");
}

TEST_F(CommandsTest, TrainRefusesWhatCannotWorkBeforeItWritesAnything) {
  Write("c.toml", kConfig);
  ExpectFailure("train missing.toml --run-dir run", 2, "missing.toml");
  ExpectFailure("train c.toml --run-dir run --set task.name=chess", 1, "chess");
  ExpectFailure("train c.toml --run-dir run --set model.path=models/none", 1, "models/none");
  ExpectFailure("train c.toml --run-dir run --set model.path=models/none", 1, "millrace import");
  ExpectFailure("sft c.toml --run-dir run", 2, "nothing to train");
  ExpectFailure("train c.toml --run-dir run --set rollout.kv_tokens=1000000000", 1,
                "rollout.kv_tokens: 1000000000 tokens of this model take");
  EXPECT_FALSE(FileExists(Path("run")));
  ExpectFailure("train c.toml --run-dir /proc/run", 1, "run directory /proc/run cannot be used");
  ASSERT_OK(MakeDirectories(Path("photos")));
  Write("photos/cat.jpg", "meow");
  ExpectFailure("train c.toml --run-dir photos", 1, "photos is not empty and holds no run");
}

TEST_F(CommandsTest, APortInUseIsNamed) {
  Write("c.toml", kConfig);
  Metrics metrics;
  HttpServer::Options options;
  options.host = "127.0.0.1";
  ASSERT_OK_AND_ASSIGN(auto server, HttpServer::Start(options, &metrics));
  const std::string address = absl::StrCat("127.0.0.1:", server->port());
  for (const char* field : {"buffer.address", "weight_sync.address"}) {
    ExpectFailure(absl::StrCat("train c.toml --run-dir run --set ", field, "=", address), 1,
                  absl::StrCat("cannot listen on ", address, ": the port is in use"));
  }
  EXPECT_FALSE(FileExists(Path("run")));
}

// What each start of the containers does first.
TEST_F(CommandsTest, TheContainersKeepTheConfigOfARunThatHasBegun) {
  Write("c.toml", kConfig);
  const auto init = [&](const std::string& variables) {
    Result result;
    const std::string command = absl::StrCat(
        "cd ", dir_, " && PATH=", MILLRACE_BIN_DIR, ":$PATH MILLRACE_DATA=", dir_, "/data ",
        variables, " bash ", MILLRACE_SOURCE_DIR, "/deploy/entrypoint init 2>&1 </dev/null");
    result.code = RunShell(command, &result.output);
    return result;
  };
  const Result first = init("MILLRACE_CONFIG=c.toml MILLRACE_SET='run.seed=7 run.steps=3'");
  EXPECT_EQ(first.code, 0) << first.output;
  EXPECT_EQ(LoadConfig(Path("data/run/config.toml"))->run.seed, 7);
  Write("data/run/buffer.sqlite", "x");
  const Result other = init("MILLRACE_CONFIG=c.toml");
  EXPECT_EQ(other.code, 1) << other.output;
  EXPECT_THAT(other.output, HasSubstr("run.seed was 7 and is now 0"));
  const Result longer = init("MILLRACE_SET=run.steps=9");
  EXPECT_EQ(longer.code, 0) << longer.output;
  EXPECT_THAT(longer.output, HasSubstr("run.steps was 3 and is now 9"));
  const Result plain = init("");
  EXPECT_EQ(plain.code, 0) << plain.output;
  EXPECT_THAT(plain.output, HasSubstr("Going on with run run"));
  EXPECT_EQ(LoadConfig(Path("data/run/config.toml"))->run.seed, 7);
  EXPECT_EQ(LoadConfig(Path("data/run/config.toml"))->run.steps, 9);
}

TEST_F(CommandsTest, ChatAndEvalNameWhatIsMissing) {
  ASSERT_OK(MakeDirectories(Path("empty")));
  ExpectFailure("chat nope --once hi", 1, "there is no folder nope");
  ExpectFailure("chat empty --once hi", 1, "neither a run (checkpoints/latest) nor a model folder");
  ExpectFailure("eval empty", 2, "--task must be given");
  ExpectFailure("eval empty --task sums", 1, "neither a run");
  ExpectFailure("eval empty --task chess", 1, "chess");
}

TEST_F(CommandsTest, ImportOfSomethingElseLeavesNothing) {
  Write("x.gguf", "this is no model");
  const Result result = Run("import x.gguf out");
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.output, HasSubstr("x.gguf"));
  EXPECT_FALSE(FileExists(Path("out/config.json")));
}

}  // namespace
}  // namespace millrace
