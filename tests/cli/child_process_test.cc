#include "cli/child_process.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/cli/temp_dir_test.h"

namespace millrace {
namespace {

using ::millrace::testing::StatusIs;
using ::testing::HasSubstr;

class ChildProcessTest : public TempDirTest {
 protected:
  absl::StatusOr<ChildProcess> Start(const std::string& script,
                                     std::vector<std::string> args = {}) {
    WriteScript("program", script);
    return ChildProcess::Start({Path("program"), std::move(args), Path("log")});
  }
  // The test's own time limit is the deadline.
  static ChildExit Await(ChildProcess& child) {
    while (true) {
      if (const auto exit = child.Poll()) return *exit;
      sched_yield();
    }
  }
};

TEST_F(ChildProcessTest, OutputAndErrorsGoToTheLogAndTheCodeComesBack) {
  ASSERT_OK_AND_ASSIGN(ChildProcess child, Start("echo out $1; echo err >&2; exit 7\n", {"x y"}));
  const ChildExit exit = Await(child);
  EXPECT_EQ(exit.code, 7);
  EXPECT_EQ(exit.signal, 0);
  EXPECT_EQ(Read("log"), "out x y\nerr\n");
}

TEST_F(ChildProcessTest, TheLogIsAppendedTo) {
  Write("log", "before\n");
  ASSERT_OK_AND_ASSIGN(ChildProcess child, Start("echo after\n"));
  EXPECT_TRUE(Await(child).ok());
  EXPECT_EQ(Read("log"), "before\nafter\n");
}

TEST_F(ChildProcessTest, ASignalEndsItAndIsTold) {
  ASSERT_OK_AND_ASSIGN(ChildProcess child, Start("while :; do sleep 1; done\n"));
  EXPECT_FALSE(child.Poll().has_value());
  child.Signal(SIGTERM);
  EXPECT_EQ(Await(child).signal, SIGTERM);
  child.Signal(SIGTERM);  // nothing: it has ended
}

TEST_F(ChildProcessTest, DestructionLeavesNoChild) {
  pid_t pid = -1;
  {
    ASSERT_OK_AND_ASSIGN(ChildProcess child, Start("while :; do sleep 1; done\n"));
    pid = child.pid();
    EXPECT_EQ(kill(pid, 0), 0);
  }
  EXPECT_EQ(kill(pid, 0), -1);
}

// The child of a process that is killed outright dies with it.
TEST_F(ChildProcessTest, AChildDoesNotOutliveItsParent) {
  WriteScript("program", "exec sleep 1000\n");
  const pid_t parent = fork();
  if (parent == 0) {
    auto child = ChildProcess::Start({Path("program"), {}, Path("log")});
    (void)WriteFileAtomically(Path("pid"), absl::StrCat(child.ok() ? child->pid() : 0));
    pause();
    _exit(0);
  }
  while (!FileExists(Path("pid"))) sched_yield();
  int child = 0;
  ASSERT_TRUE(absl::SimpleAtoi(Read("pid"), &child));
  ASSERT_GT(child, 0);
  kill(parent, SIGKILL);
  ASSERT_EQ(waitpid(parent, nullptr, 0), parent);
  // Dead, whether or not somebody has reaped it: /proc shows no program any more.
  while (!ReadFile(absl::StrCat("/proc/", child, "/cmdline")).value_or("").empty()) sched_yield();
}

TEST_F(ChildProcessTest, AMissingProgramIsNamed) {
  EXPECT_THAT(ChildProcess::Start({Path("nope"), {}, Path("log")}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(Path("nope"))));
  Write("text", "no program");
  EXPECT_THAT(ChildProcess::Start({Path("text"), {}, Path("log")}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("text")));
}

TEST_F(ChildProcessTest, LastLinesAreThoseAtTheEnd) {
  Write("f", "a\nb\nc\n");
  EXPECT_EQ(LastLines(Path("f"), 2), "b\nc");
  EXPECT_EQ(LastLines(Path("f"), 9), "a\nb\nc");
  Write("f", "one");
  EXPECT_EQ(LastLines(Path("f"), 2), "one");
  EXPECT_EQ(LastLines(Path("nope"), 2), "");
}

}  // namespace
}  // namespace millrace
