// The `millrace` program itself, on input that is wrong: a clear message, a non-zero exit code, and
// nothing half-written.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "cli/local_model.h"
#include "common/http_server.h"
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
