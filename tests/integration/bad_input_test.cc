// What a user gets wrong: a clear error naming the thing, a non-zero exit, nothing half-written.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_harness.h"

namespace millrace::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class BadInputTest : public ::testing::Test {
 protected:
  BadInputTest() : folder_(MakeTempFolder()) {}
  ~BadInputTest() override { fs::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }
  CommandResult Train(const std::string& config, const std::string& run_dir = "run") {
    return RunCommand({Program("millrace"), "train", config, "--run-dir",
                       run_dir[0] == '/' ? run_dir : folder_ + "/" + run_dir});
  }
  std::string folder_;
};

TEST_F(BadInputTest, ABrokenConfigNamesFieldLineAndWhatWouldBeValid) {
  const std::string config =
      Write("c.toml", "[run]\nsteps = -3\n[learner]\nlearning_rate = 1.0\nschedule = \"linear\"\n");
  const CommandResult result = Train(config);
  EXPECT_EQ(result.exit_code, 2) << result.output;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("c.toml:2: run.steps"), HasSubstr("c.toml:4: learner.learning_rate"),
                    HasSubstr("valid in [learner]: lr,"), HasSubstr("c.toml:5: learner.schedule"),
                    HasSubstr("cosine")));
  EXPECT_FALSE(fs::exists(folder_ + "/run"));
  const CommandResult check = RunCommand({Program("millrace"), "config", "check", config});
  EXPECT_NE(check.exit_code, 0);
  EXPECT_THAT(check.output, HasSubstr("c.toml:2: run.steps"));
}

TEST_F(BadInputTest, AMissingConfigIsNamed) {
  const CommandResult result = Train(folder_ + "/none.toml");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("none.toml"));
}

TEST_F(BadInputTest, AMissingModelFolderSaysHowToMakeIt) {
  const CommandResult result =
      Train(Write("c.toml", "[model]\npath = \"" + folder_ + "/nowhere\"\n"));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output, AllOf(HasSubstr("nowhere"), HasSubstr("import")));
}

TEST_F(BadInputTest, ATruncatedCheckpointIsNamedBeforeAnythingStarts) {
  const std::string model = folder_ + "/model";
  fs::copy(std::string(MILLRACE_GOLDEN_DIR) + "/models/llama_untied", model,
           fs::copy_options::recursive);
  fs::copy(std::string(MILLRACE_GOLDEN_DIR) + "/tokenizers/gpt2_digits", model,
           fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  // That tokenizer has more ids than the model: let the config agree with it, so that only the
  // cut file is wrong.
  std::ostringstream text;
  text << std::ifstream(model + "/config.json").rdbuf();
  std::string config = text.str();
  const std::string narrow = "\"vocab_size\": 512";
  ASSERT_THAT(config, HasSubstr(narrow));
  config.replace(config.find(narrow), narrow.size(), "\"vocab_size\": 2048");
  Write("model/config.json", config);
  fs::resize_file(model + "/model.safetensors", fs::file_size(model + "/model.safetensors") / 2);
  const CommandResult result =
      Train(Write("c.toml", "[model]\npath = \"" + model +
                                "\"\n[rollout]\nmax_prompt_tokens = 208\n"
                                "[supervisor]\nmax_restarts = 1\nbackoff_seconds = 0.1\n"));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("model.safetensors"));
}

TEST_F(BadInputTest, AnUnwritableRunDirectoryIsNamed) {
  const CommandResult result = Train(
      Write("c.toml", "[run]\nsteps = 1\n[task]\nname = \"coin_sums\"\n"), "/proc/millrace-run");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("/proc/millrace-run"));
}

TEST_F(BadInputTest, APortInUseIsNamed) {
  const CommandResult held = RunCommand({Program("millrace"), "version"});
  ASSERT_EQ(held.exit_code, 0);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  socklen_t size = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const CommandResult result = RunCommand(
      {Program("millrace-buffer"), "--config", Write("c.toml", "[task]\nname = \"coin_sums\"\n"),
       "--run-dir", folder_ + "/run", "--listen", "127.0.0.1:" + port});
  close(fd);
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr(port), HasSubstr("in use")));
}

TEST_F(BadInputTest, ACommandWhoseProgramIsMissingNamesIt) {
  fs::copy_file(Program("millrace"), folder_ + "/millrace");
  const CommandResult result = RunCommand({folder_ + "/millrace", "chat", folder_});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr(folder_ + "/millrace-model: No such file"));
}

TEST_F(BadInputTest, AnUnknownTaskListsThoseThereAre) {
  const CommandResult result = Train(Write("c.toml", "[task]\nname = \"sum\"\n"));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output, AllOf(HasSubstr("sum"), HasSubstr("log_json")));
}

TEST_F(BadInputTest, PromptsThatNeverFitAreNamedBeforeAnythingStarts) {
  const CommandResult result = Train(Write(
      "c.toml", "[run]\nsteps = 1\n[task]\nname = \"sums\"\n[rollout]\nmax_prompt_tokens = 2\n"));
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_THAT(result.output, AllOf(HasSubstr("task sums"), HasSubstr("max_prompt_tokens is 2")));
  EXPECT_FALSE(fs::exists(folder_ + "/run"));
}

TEST_F(BadInputTest, ImportOfSomethingElseLeavesNothingBehind) {
  const CommandResult result =
      RunCommand({Program("millrace"), "import", Write("x.gguf", "not a model"), folder_ + "/out"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("x.gguf"));
  EXPECT_FALSE(fs::exists(folder_ + "/out/config.json"));
}

TEST_F(BadInputTest, ARunDirectoryOfAnotherRunIsRefused) {
  TrainRun run({"run.steps=2", "eval.problems=0"});
  run.Start();
  ASSERT_TRUE(run.WaitForEnd().ok());
  const std::string before = ReadWhole(run.dir() + "/config.toml");
  const CommandResult result =
      Train(Write("c.toml", "[run]\nname = \"other\"\n[task]\nname = \"coin_sums\"\n"), run.dir());
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.output, HasSubstr("other"));
  EXPECT_EQ(ReadWhole(run.dir() + "/config.toml"), before);
}

}  // namespace
}  // namespace millrace::testing
