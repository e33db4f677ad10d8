#include "common/process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

// Runs bin/test_role with stderr in a file.
class RoleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = JoinPath(::testing::TempDir(), "process_test_XXXXXX");
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    config_ = JoinPath(dir_, "c.toml");
    ASSERT_OK(WriteFileAtomically(config_, "[rollout]\nmax_prompt_tokens = 64\n"));
    run_dir_ = JoinPath(dir_, "run");
  }
  void TearDown() override { EXPECT_OK(RemoveRecursively(dir_)); }

  pid_t Start(std::vector<std::string> args) {
    const std::string program = JoinPath(MILLRACE_BIN_DIR, "test_role");
    args.insert(args.begin(), program);
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    const std::string log = JoinPath(dir_, "stderr");
    const pid_t pid = fork();
    if (pid == 0) {
      const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      dup2(fd, 1);
      dup2(fd, 2);
      signal(SIGHUP, hangup_);  // whatever this test was started under
      execv(program.c_str(), argv.data());
      _exit(127);
    }
    return pid;
  }
  // Exit code, or -signal.
  int Wait(pid_t pid) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int Run(std::vector<std::string> args) { return Wait(Start(std::move(args))); }
  std::string Output() { return ReadFile(JoinPath(dir_, "stderr")).value_or("no output"); }
  std::string Events() { return ReadFile(JoinPath(run_dir_, "events.jsonl")).value_or(""); }
  // Waits until `text` is in the events; the test's own time limit is the deadline.
  void AwaitEvent(pid_t pid, const std::string& text) {
    while (Events().find(text) == std::string::npos && kill(pid, 0) == 0) sched_yield();
  }

  std::string dir_, config_, run_dir_;
  sighandler_t hangup_ = SIG_DFL;
};

TEST_F(RoleTest, AnnouncesItselfAndReturnsZero) {
  EXPECT_EQ(Run({"--config", config_, "--run-dir", run_dir_, "--name", "test-3", "--set",
                 "run.name=quick"}),
            0)
      << Output();
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       ReadFile(JoinPath(run_dir_, "endpoints/test-3.json")));
  const auto endpoint = nlohmann::json::parse(text);
  EXPECT_EQ(endpoint["name"], "test-3");
  EXPECT_EQ(endpoint["role"], "test");
  EXPECT_EQ(endpoint["address"], "127.0.0.1:1");
  EXPECT_GT(endpoint["pid"].get<int>(), 0);
  EXPECT_THAT(endpoint["metrics_address"].get<std::string>(), HasSubstr("127.0.0.1:"));
  const auto event = nlohmann::json::parse(Events());
  EXPECT_EQ(event["event"], "started");
  EXPECT_EQ(event["name"], "test-3");
  EXPECT_EQ(event["steps"], 3);
}

TEST_F(RoleTest, SigtermEndsItCleanly) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    SCOPED_TRACE(signal);
    ASSERT_OK(RemoveRecursively(run_dir_));
    const pid_t pid = Start({"--config", config_, "--run-dir", run_dir_});
    AwaitEvent(pid, "started");
    kill(pid, signal);
    EXPECT_EQ(Wait(pid), 0) << Output();
    EXPECT_THAT(Events(), HasSubstr("stopping"));
  }
}

TEST_F(RoleTest, AHurriedStopIsACleanOneWhicheverSignalComesFirst) {
  for (const auto& [first, second] : {std::pair(SIGTERM, SIGUSR1), std::pair(SIGUSR1, SIGTERM)}) {
    SCOPED_TRACE(first);
    ASSERT_OK(RemoveRecursively(run_dir_));
    const pid_t pid = Start({"--config", config_, "--run-dir", run_dir_});
    AwaitEvent(pid, "started");
    kill(pid, first);
    kill(pid, second);
    EXPECT_EQ(Wait(pid), 0) << Output();
    EXPECT_THAT(Events(), HasSubstr("stopping"));
  }
}

TEST_F(RoleTest, ATerminalThatClosesTwiceDoesNotCutTheEndShort) {
  const pid_t pid = Start({"--config", config_, "--run-dir", run_dir_});
  AwaitEvent(pid, "started");
  kill(pid, SIGHUP);
  kill(pid, SIGHUP);
  EXPECT_EQ(Wait(pid), 0) << Output();
  EXPECT_THAT(Events(), HasSubstr("stopping"));
}

TEST_F(RoleTest, UnderNohupAClosedTerminalChangesNothing) {
  hangup_ = SIG_IGN;
  const pid_t pid = Start({"--config", config_, "--run-dir", run_dir_});
  AwaitEvent(pid, "started");
  const std::string status = ReadFile(absl::StrCat("/proc/", pid, "/status")).value_or("");
  const size_t ignored = status.find("SigIgn:");
  ASSERT_NE(ignored, std::string::npos);
  const uint64_t mask = std::stoull(status.substr(ignored + 7), nullptr, 16);
  EXPECT_EQ(mask >> (SIGHUP - 1) & 1, 1u) << status;
  kill(pid, SIGTERM);
  EXPECT_EQ(Wait(pid), 0) << Output();
}

TEST_F(RoleTest, GivingUpHasAnExitCodeOfItsOwn) {
  EXPECT_EQ(Run({"--config", config_, "--run-dir", run_dir_, "--set", "run.name=give-up"}),
            kExitGaveUp);
  EXPECT_THAT(Output(), HasSubstr("DEADLINE_EXCEEDED: waited in vain\n"));
}

TEST_F(RoleTest, AFailedBodyIsPrintedAndReturnsOne) {
  EXPECT_EQ(Run({"--config", config_, "--run-dir", run_dir_, "--set", "run.name=fail"}), 1);
  EXPECT_THAT(Output(), HasSubstr("the body failed as told"));
}

TEST_F(RoleTest, BadFlagsAndConfigReturnTwoAndWriteNothing) {
  EXPECT_EQ(Run({"--no-such-flag"}), 2);
  EXPECT_EQ(Run({"--config", JoinPath(dir_, "nope.toml"), "--run-dir", run_dir_}), 2);
  EXPECT_THAT(Output(), HasSubstr("nope.toml"));
  EXPECT_EQ(Run({"--config", config_, "--run-dir", run_dir_, "--set", "run.stepz=1"}), 2);
  EXPECT_THAT(Output(), HasSubstr("did you mean run.steps?"));
  EXPECT_EQ(Run({"--config", config_}), 2);
  EXPECT_THAT(Output(), HasSubstr("no run directory"));
  EXPECT_FALSE(FileExists(run_dir_));
}

TEST_F(RoleTest, AnUnusableRunDirectoryIsNamedAndReturnsOne) {
  EXPECT_EQ(Run({"--config", config_, "--run-dir", "/proc/no"}), 1);
  EXPECT_THAT(Output(), HasSubstr("run directory /proc/no cannot be used"));
}

TEST_F(RoleTest, AConfigInTheRunDirectoryIsTheDefault) {
  ASSERT_OK(MakeDirectories(run_dir_));
  ASSERT_OK(WriteFileAtomically(JoinPath(run_dir_, "config.toml"),
                                "[rollout]\nmax_prompt_tokens = 64\n[run]\nname = \"quick\"\n"));
  EXPECT_EQ(Run({"--run-dir", run_dir_}), 0) << Output();
}

TEST_F(RoleTest, FieldsOfAnEventDoNotReplaceItsOwn) {
  ASSERT_OK(MakeDirectories(run_dir_));
  AppendEvent(run_dir_, {"learner", "learner-0", "checkpoint", R"({"name":"step-3","step":3})"});
  const auto event = nlohmann::json::parse(Events());
  EXPECT_EQ(event["name"], "learner-0");
  EXPECT_EQ(event["checkpoint_name"], "step-3");
  EXPECT_EQ(event["step"], 3);
}

TEST(ResidentBytesTest, OwnMemoryIsPositiveAndAGoneProcessHasNone) {
  EXPECT_GT(ResidentBytes(), 0);
  EXPECT_GE(PeakResidentBytes(), ResidentBytes());
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  waitpid(pid, nullptr, 0);
  EXPECT_EQ(ResidentBytes(pid), 0);
  EXPECT_EQ(PeakResidentBytes(pid), 0);
}

}  // namespace
}  // namespace millrace
