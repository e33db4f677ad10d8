#include "cli/supervisor.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/process.h"
#include "tests/cli/temp_dir_test.h"

namespace millrace {
namespace {

using ::millrace::testing::IsOkAndHolds;
using ::millrace::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// What every fake role does first: notes its start and flags, and announces itself. Then it waits
// for files that the test makes: "<name>.die" kills it, "<name>.exit" holds its exit code.
constexpr char kRole[] = R"(
args="$*"
while [ $# -gt 0 ]; do
  case "$1" in
    --run-dir) run=$2;; --name) name=$2;; --listen) listen=$2;;
  esac
  shift
done
trap 'echo "$name" >> "$run/stops"; exit 0' TERM
trap '' USR1
echo "$name $args" >> "$run/starts"
)";
constexpr char kAnnounce[] = R"(
printf '{"name":"%s","pid":%d,"address":"%s"}' "$name" $$ "$listen" > "$run/endpoints/$name.json.part"
mv "$run/endpoints/$name.json.part" "$run/endpoints/$name.json"
)";
constexpr char kServe[] = R"(
while :; do
  if [ -e "$run/$name.die" ]; then rm "$run/$name.die"; kill -9 $$; fi
  if [ -e "$run/$name.exit" ]; then code=$(cat "$run/$name.exit"); rm "$run/$name.exit"; exit $code; fi
  sleep 0.02
done
)";

class SupervisorTest : public TempDirTest {
 protected:
  void SetUp() override {
    TempDirTest::SetUp();
    for (const char* sub : {"run/logs", "run/endpoints", "bin"}) {
      ASSERT_OK(MakeDirectories(Path(sub)));
    }
    config_.rollout.servers = 2;
    config_.supervisor.backoff_seconds = 0.01;
    config_.supervisor.max_backoff_seconds = 0.02;
    for (const char* role : {"buffer", "learner", "rollout"}) {
      SetRole(role, absl::StrCat(kRole, kAnnounce, kServe));
    }
  }

  void SetRole(const std::string& role, const std::string& script) {
    WriteScript("bin/millrace-" + role, script);
  }

  // Runs a supervisor; `tick` is called between its rounds, and may ask for a stop.
  absl::StatusOr<RunEnd> Run(std::function<void()> tick) {
    Supervisor::Options options;
    options.config = config_;
    options.run_dir = Path("run");
    options.program_dir = Path("bin");
    options.wait_for_stop = [this](absl::Duration) {
      sched_yield();
      return stop_;
    };
    options.tick = std::move(tick);
    options.notice = [this](const std::string& line) { notices_.push_back(line); };
    options.stop_grace = grace_;
    options.tell_after = grace_ / 10;
    Supervisor supervisor(std::move(options));
    absl::StatusOr<RunEnd> end = supervisor.Run();
    peaks_ = supervisor.peak_memory_bytes();
    return end;
  }

  // One line a start: "name flags".
  std::vector<std::string> Starts() {
    return absl::StrSplit(Read("run/starts"), '\n', absl::SkipEmpty());
  }
  std::vector<std::string> StartedNames() {
    std::vector<std::string> names;
    for (const std::string& line : Starts()) {
      names.push_back(std::vector<std::string>(absl::StrSplit(line, ' '))[0]);
    }
    return names;
  }
  int Count(const std::string& name) {
    const auto names = StartedNames();
    return static_cast<int>(std::count(names.begin(), names.end(), name));
  }
  // The value of a flag in the n-th start of a child.
  std::string Flag(const std::string& name, int nth, const std::string& flag) {
    for (const std::string& line : Starts()) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      if (words[0] != name || nth-- > 0) continue;
      const auto it = std::find(words.begin(), words.end(), flag);
      return it == words.end() || it + 1 == words.end() ? "" : *(it + 1);
    }
    return "";
  }
  bool Announced(const std::string& name) {
    return FileExists(Path("run/endpoints/" + name + ".json"));
  }
  void FinishLearner() {
    Write("run/summary.json", "{}");
    Write("run/learner.exit", "0");
  }

  RunConfig config_;
  bool stop_ = false;
  absl::Duration grace_ = absl::Seconds(60);
  std::vector<std::string> notices_;
  std::map<std::string, int64_t> peaks_;
};

TEST_F(SupervisorTest, StartsInOrderPassesAddressesAndEndsWithTheLearner) {
  EXPECT_THAT(Run([&] {
                if (Announced("rollout-0") && Announced("rollout-1")) FinishLearner();
              }),
              IsOkAndHolds(RunEnd::kFinished));
  const std::vector<std::string> names = StartedNames();
  ASSERT_EQ(names.size(), 4u);
  EXPECT_EQ(names[0], "buffer");
  EXPECT_EQ(names[1], "learner");
  EXPECT_THAT(names, Contains("rollout-0"));
  EXPECT_THAT(names, Contains("rollout-1"));
  const std::string buffer = Flag("buffer", 0, "--listen");
  const std::string learner = Flag("learner", 0, "--listen");
  EXPECT_EQ(Flag("learner", 0, "--buffer"), buffer);
  EXPECT_EQ(Flag("rollout-1", 0, "--buffer"), buffer);
  EXPECT_EQ(Flag("rollout-1", 0, "--sync"), learner);
  EXPECT_EQ(Flag("buffer", 0, "--config"), Path("run/config.toml"));
  EXPECT_EQ(Flag("buffer", 0, "--run-dir"), Path("run"));
  // The others were told to stop, the buffer last.
  const std::vector<std::string> stops = absl::StrSplit(Read("run/stops"), '\n', absl::SkipEmpty());
  ASSERT_EQ(stops.size(), 3u);
  EXPECT_EQ(stops[2], "buffer");
  for (const char* name : {"buffer", "learner", "rollout-0", "rollout-1"}) {
    EXPECT_GT(peaks_[name], 0) << name;
  }
}

TEST_F(SupervisorTest, AStaleEndpointIsNotTakenForANewOne) {
  Write("run/endpoints/buffer.json", R"({"name":"buffer","pid":1,"address":"old:1"})");
  EXPECT_THAT(Run([&] {
                if (Announced("rollout-0") && Announced("rollout-1")) FinishLearner();
              }),
              IsOkAndHolds(RunEnd::kFinished));
  EXPECT_THAT(Read("run/starts"), Not(HasSubstr("old:1")));
}

TEST_F(SupervisorTest, ADeadChildComesBackOnItsPort) {
  for (const char* name : {"rollout-1", "buffer", "learner"}) {
    SCOPED_TRACE(name);
    TearDown();
    SetUp();
    notices_.clear();
    bool killed = false;
    EXPECT_THAT(Run([&] {
                  if (!killed && Announced("rollout-0") && Announced("rollout-1")) {
                    Write(absl::StrCat("run/", name, ".die"), "");
                    killed = true;
                  }
                  if (killed && Count(name) == 2 && Announced(name)) FinishLearner();
                }),
                IsOkAndHolds(RunEnd::kFinished));
    EXPECT_EQ(Count(name), 2);
    EXPECT_EQ(Flag(name, 1, "--listen"), Flag(name, 0, "--listen"));
    EXPECT_EQ(Flag(name, 1, "--metrics-port"), Flag(name, 0, "--metrics-port"));
    EXPECT_THAT(notices_, Contains(AllOf(HasSubstr(name), HasSubstr("killed by signal 9"))));
    EXPECT_THAT(Read("run/events.jsonl"), HasSubstr("child_died"));
  }
}

TEST_F(SupervisorTest, GivesUpWithTheExitAndTheLastLinesOfTheLog) {
  config_.supervisor.max_restarts = 2;
  SetRole("rollout", absl::StrCat(kRole, kAnnounce, "echo 'the tensor is too large'\nexit 3\n"));
  EXPECT_THAT(Run([] {}), StatusIs(absl::StatusCode::kAborted,
                                   AllOf(HasSubstr("rollout-"), HasSubstr("exited with code 3"),
                                         HasSubstr("restarted 2 times"), HasSubstr("logs/rollout-"),
                                         HasSubstr("the tensor is too large"))));
  // Nobody is left: all were told to stop.
  EXPECT_THAT(Read("run/stops"), AllOf(HasSubstr("learner"), HasSubstr("buffer")));
}

TEST_F(SupervisorTest, WrongConfigOfAChildEndsTheRunAtOnce) {
  SetRole("learner", absl::StrCat(kRole, "echo 'learner.lr: bad' >&2\nexit 2\n"));
  EXPECT_THAT(Run([] {}),
              StatusIs(absl::StatusCode::kAborted, AllOf(HasSubstr("learner exited with code 2"),
                                                         HasSubstr("learner.lr: bad"))));
  EXPECT_EQ(Count("learner"), 1);
}

TEST_F(SupervisorTest, AChildThatNeverServesIsGivenUpAfterAFewTries) {
  SetRole("buffer", absl::StrCat(kRole, "echo 'no space left' >&2\nexit 1\n"));
  EXPECT_THAT(Run([] {}), StatusIs(absl::StatusCode::kAborted,
                                   AllOf(HasSubstr("buffer exited with code 1"),
                                         HasSubstr("no space left"), HasSubstr("in 3 tries"))));
  EXPECT_EQ(Count("buffer"), 3);
  EXPECT_EQ(Count("learner"), 0);
}

TEST_F(SupervisorTest, AChildThatDoesNotAnnounceItselfInTimeIsKilledAndRestarted) {
  config_.supervisor.start_timeout_seconds = 0.05;
  config_.supervisor.max_restarts = 1;
  SetRole("buffer", absl::StrCat(kRole, kServe));
  EXPECT_THAT(Run([] {}),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("did not announce itself within")));
}

TEST_F(SupervisorTest, ARolloutServerThatEndsCleanlyBeforeTheRunDoesIsRestarted) {
  bool ended = false;
  EXPECT_THAT(Run([&] {
                if (!ended && Announced("rollout-0") && Announced("rollout-1")) {
                  Write("run/rollout-0.exit", "0");
                  ended = true;
                }
                if (Count("rollout-0") == 2 && Announced("rollout-0")) FinishLearner();
              }),
              IsOkAndHolds(RunEnd::kFinished));
}

TEST_F(SupervisorTest, ALearnerThatEndsCleanlyWithoutASummaryIsRestarted) {
  bool ended = false;
  EXPECT_THAT(Run([&] {
                if (!ended && Announced("rollout-0") && Announced("rollout-1")) {
                  Write("run/learner.exit", "0");
                  ended = true;
                }
                if (Count("learner") == 2 && Announced("learner")) FinishLearner();
              }),
              IsOkAndHolds(RunEnd::kFinished));
  EXPECT_EQ(Count("learner"), 2);
}

TEST_F(SupervisorTest, ANoticeOfAnErrorHasItsLastWords) {
  bool failed = false;
  SetRole("rollout", absl::StrCat(kRole, kAnnounce, "echo 'no CUDA device' >&2\n", kServe));
  EXPECT_THAT(Run([&] {
                if (!failed && Announced("rollout-0") && Announced("rollout-1")) {
                  Write("run/rollout-0.exit", "1");
                  failed = true;
                }
                if (Count("rollout-0") == 2 && Announced("rollout-0")) FinishLearner();
              }),
              IsOkAndHolds(RunEnd::kFinished));
  EXPECT_THAT(notices_, Contains(AllOf(HasSubstr("rollout-0 exited with code 1: no CUDA device;"),
                                       HasSubstr("starting it again"))));
}

TEST_F(SupervisorTest, ARolloutServerThatEndsAfterTheSummaryStaysEnded) {
  bool told = false;
  EXPECT_THAT(Run([&] {
                if (!told && Announced("rollout-0") && Announced("rollout-1")) {
                  Write("run/summary.json", "{}");
                  Write("run/rollout-0.exit", "0");
                  told = true;
                }
                if (told && Read("run/events.jsonl").find("child_finished") != std::string::npos) {
                  FinishLearner();
                }
              }),
              IsOkAndHolds(RunEnd::kFinished));
  EXPECT_EQ(Count("rollout-0"), 1);
}

TEST_F(SupervisorTest, AStopEndsEveryChildInOrder) {
  EXPECT_THAT(Run([&] { stop_ = Announced("rollout-0") && Announced("rollout-1"); }),
              IsOkAndHolds(RunEnd::kStopped));
  const std::vector<std::string> stops = absl::StrSplit(Read("run/stops"), '\n', absl::SkipEmpty());
  ASSERT_EQ(stops.size(), 4u);
  EXPECT_EQ(stops[3], "buffer");
}

TEST_F(SupervisorTest, RolloutServersGoOnUntilTheLearnerHasEndedAndNoLonger) {
  // On SIGTERM a server works on, until it is hurried.
  SetRole("rollout", absl::StrCat(kRole, R"(
trap 'echo "$name" >> "$run/draining"' TERM
trap 'echo "$name" >> "$run/stops"; exit 0' USR1
)",
                                  kAnnounce, kServe));
  SetRole("learner", absl::StrCat(kRole, R"(
trap 'until [ -e "$run/draining" ] && [ $(wc -l < "$run/draining") = 2 ]; do sleep 0.02; done
  echo "$name" >> "$run/stops"; exit 0' TERM
)",
                                  kAnnounce, kServe));
  EXPECT_THAT(Run([&] { stop_ = Announced("rollout-0") && Announced("rollout-1"); }),
              IsOkAndHolds(RunEnd::kStopped));
  const std::vector<std::string> stops = absl::StrSplit(Read("run/stops"), '\n', absl::SkipEmpty());
  ASSERT_EQ(stops.size(), 4u) << Read("run/stops");
  EXPECT_EQ(stops[0], "learner");
  EXPECT_EQ(stops[3], "buffer");
}

TEST_F(SupervisorTest, AStopDuringTheStartIsFineToo) {
  SetRole("buffer", absl::StrCat(kRole, kServe));  // never announces itself
  EXPECT_THAT(Run([&] { stop_ = Count("buffer") == 1; }), IsOkAndHolds(RunEnd::kStopped));
}

TEST_F(SupervisorTest, AChildDeafToSigtermIsKilled) {
  grace_ = absl::Milliseconds(50);
  SetRole("rollout",
          absl::StrCat(kRole, "trap '' TERM\n", kAnnounce, "while :; do sleep 0.02; done\n"));
  EXPECT_THAT(Run([&] { stop_ = Announced("rollout-0") && Announced("rollout-1"); }),
              IsOkAndHolds(RunEnd::kStopped));
  EXPECT_THAT(notices_, Contains(AllOf(HasSubstr("waiting for"), HasSubstr("rollout-0"),
                                       HasSubstr("second Ctrl-C"))));
  EXPECT_THAT(notices_, Contains(HasSubstr("rollout-0 did not end within")));
}

TEST_F(SupervisorTest, FixedAddressesAreListenedOn) {
  config_.buffer.address = "0.0.0.0:7001";
  config_.weight_sync.address = "127.0.0.1:7002";
  EXPECT_THAT(Run([&] { stop_ = Announced("rollout-0"); }), IsOkAndHolds(RunEnd::kStopped));
  EXPECT_EQ(Flag("buffer", 0, "--listen"), "0.0.0.0:7001");
  EXPECT_EQ(Flag("buffer", 0, "--advertise"), "127.0.0.1");
  EXPECT_EQ(Flag("learner", 0, "--listen"), "127.0.0.1:7002");
}

TEST_F(SupervisorTest, AMissingProgramIsNamed) {
  ASSERT_OK(RemoveRecursively(Path("bin/millrace-learner")));
  EXPECT_THAT(Run([] {}), StatusIs(absl::StatusCode::kNotFound, HasSubstr("millrace-learner")));
}

}  // namespace
}  // namespace millrace
