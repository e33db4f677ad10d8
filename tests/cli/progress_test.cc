#include "cli/progress.h"

#include <gmock/gmock.h>

#include "tests/cli/temp_dir_test.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using Json = nlohmann::json;

Json Step(int64_t step) {
  return {{"step", step},
          {"phase", "grpo"},
          {"reward_mean", 0.75},
          {"groups", 8},
          {"dropped", {{"no_gradient", 3}, {"stale", 0}}},
          {"staleness_mean", 0.5},
          {"staleness_max", 1},
          {"tokens_per_second", 410.4},
          {"entropy", 0.25},
          {"grad_norm", 1.5},
          {"seconds", {{"total", 10.0}}}};
}

Json Eval(const char* kind, const char* mode, double accuracy) {
  return {{"step", 0},
          {"kind", kind},
          {"mode", mode},
          {"problems", 200},
          {"samples", 800},
          {"correct", 193},
          {"accuracy", accuracy},
          {"low", 0.2},
          {"high", 0.28},
          {"seconds", 30.0},
          {"baseline_accuracy", 0.35}};
}

TEST(FormatSecondsTest, UsesTheTwoLargestUnits) {
  EXPECT_EQ(FormatSeconds(0), "0s");
  EXPECT_EQ(FormatSeconds(59.4), "59s");
  EXPECT_EQ(FormatSeconds(59.6), "1m00s");
  EXPECT_EQ(FormatSeconds(3723), "1h02m");
  EXPECT_EQ(FormatSeconds(-5), "0s");
}

TEST(FormatBarTest, FillsByTheFraction) {
  EXPECT_EQ(FormatBar(0, 4), "[....]");
  EXPECT_EQ(FormatBar(0.5, 4), "[##..]");
  EXPECT_EQ(FormatBar(1.7, 4), "[####]");
}

TEST(StatusTrackerTest, PhasesFollowTheRun) {
  StatusTracker tracker(/*steps=*/2, /*sft_steps=*/100);
  EXPECT_EQ(tracker.status().phase, RunPhase::kStarting);
  tracker.OnEvent({{"event", "eval_progress"}, {"kind", "before"}, {"done", 50}, {"total", 200}});
  EXPECT_EQ(tracker.status().phase, RunPhase::kEvaluatingBefore);
  EXPECT_THAT(FormatLiveLine(tracker.status(), 200),
              HasSubstr("evaluating before [#####...............] 50/200 problems"));
  tracker.OnMetrics({{"step", 10}, {"phase", "sft"}, {"loss", 2.5}});
  EXPECT_EQ(tracker.status().phase, RunPhase::kWarmUp);
  EXPECT_THAT(FormatLiveLine(tracker.status(), 200),
              AllOf(HasSubstr("warm-up"), HasSubstr("10/100"), HasSubstr("loss 2.500")));
  tracker.OnMetrics(Step(1));
  EXPECT_EQ(tracker.status().phase, RunPhase::kTraining);
  tracker.OnMetrics(Step(2));
  EXPECT_EQ(tracker.status().phase, RunPhase::kEvaluatingAfter);
  tracker.OnEvent({{"event", "phase"}, {"phase", "finished"}});
  EXPECT_EQ(FormatLiveLine(tracker.status(), 200), "finishing");
}

TEST(StatusTrackerTest, TheLiveLineOfTrainingHasWhatMatters) {
  StatusTracker tracker(10, 0);
  tracker.OnEval(Eval("before", "sampled", 0.241));
  tracker.OnEval(Eval("before", "greedy", 0.54));  // does not replace the sampled figure
  for (int64_t step = 1; step <= 5; ++step) tracker.OnMetrics(Step(step));
  // Five steps of 10 s are left, and two evaluations of 30 s.
  EXPECT_EQ(FormatLiveLine(tracker.status(), 200),
            "training [##########..........] 5/10 | reward 0.75 | held-out 24.1 % | "
            "staleness 0.5 | 410 tokens/s | 1m50s left");
  EXPECT_THAT(FormatLiveLine(tracker.status(), 40), SizeIs(40));
}

TEST(StatusTrackerTest, AStepIsOnePlainLine) {
  StatusTracker tracker(10, 0);
  const std::vector<std::string> lines = tracker.OnMetrics(Step(1));
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0], AllOf(HasSubstr("step 1/10: reward 0.750"), HasSubstr("8 groups"),
                              HasSubstr("dropped: no_gradient 3"), HasSubstr("410 tokens/s"),
                              HasSubstr("1m30s left"), Not(HasSubstr("stale 0"))));
}

TEST(StatusTrackerTest, OnlyEveryTenthWarmUpStepIsALine) {
  StatusTracker tracker(10, 400);
  int lines = 0;
  for (int step = 1; step <= 40; ++step) {
    lines += static_cast<int>(
        tracker.OnMetrics({{"step", step}, {"phase", "sft"}, {"loss", 1.0}}).size());
  }
  EXPECT_EQ(lines, 4);
}

TEST(StatusTrackerTest, AnEvaluationIsOnePlainLineWithIntervalAndBaseline) {
  StatusTracker tracker(10, 0);
  EXPECT_THAT(tracker.OnEval(Eval("before", "sampled", 0.241)),
              ElementsAre("held-out before training, sampled: 24.1 % (95 %: 20.0 % to 28.0 %; 193 "
                          "of 800 right); baseline without a model 35.0 %"));
  Json periodic = Eval("periodic", "sampled", 0.5);
  periodic["step"] = 8;
  periodic.erase("baseline_accuracy");
  EXPECT_THAT(tracker.OnEval(periodic),
              ElementsAre(AllOf(HasSubstr("held-out at step 8"), Not(HasSubstr("baseline")))));
}

TEST(StatusTrackerTest, EvaluationProgressIsALineEveryQuarter) {
  StatusTracker tracker(10, 0);
  int lines = 0;
  for (int done = 0; done <= 200; ++done) {
    lines += static_cast<int>(tracker
                                  .OnEvent({{"event", "eval_progress"},
                                            {"kind", "after"},
                                            {"mode", "sampled"},
                                            {"done", done},
                                            {"total", 200}})
                                  .size());
  }
  EXPECT_EQ(lines, 4);  // 50, 100, 150, 200
}

TEST(StatusTrackerTest, AnEvaluationBesideTrainingDoesNotChangeThePhase) {
  StatusTracker tracker(10, 0);
  tracker.OnMetrics(Step(1));
  tracker.OnEvent({{"event", "eval_progress"}, {"kind", "periodic"}, {"done", 1}, {"total", 32}});
  EXPECT_EQ(tracker.status().phase, RunPhase::kTraining);
}

TEST(StatusTrackerTest, PhasesAndTheEndOfTheWarmUpArePlainLines) {
  StatusTracker tracker(10, 100);
  for (const char* phase : {"sft", "evaluate_before", "train", "evaluate_after", "finished"}) {
    EXPECT_THAT(tracker.OnEvent({{"event", "phase"}, {"phase", phase}}), SizeIs(1)) << phase;
  }
  EXPECT_THAT(tracker.OnEvent({{"event", "phase"}, {"phase", "unheard of"}}), IsEmpty());
  EXPECT_THAT(tracker.OnEvent({{"event", "sft_done"}, {"message", "accuracy 0.31"}}),
              ElementsAre("warm-up done: accuracy 0.31"));
}

TEST(StatusTrackerTest, LinesWithMissingNullOrWrongFieldsDoNoHarm) {
  StatusTracker tracker(10, 0);
  for (const char* text : {"{}", R"({"step":null,"phase":3,"seconds":[],"dropped":null})",
                           R"({"event":"eval_progress"})", R"({"event":"child_died"})"}) {
    tracker.OnMetrics(Json::parse(text));
    tracker.OnEval(Json::parse(text));
    tracker.OnEvent(Json::parse(text));
  }
  FormatLiveLine(tracker.status(), 80);
  EXPECT_THAT(FormatSummary(Json::object(), "runs/x"), HasSubstr("runs/x/metrics.jsonl"));
}

TEST(FormatSummaryTest, ItsCommandsCanBePastedWhateverTheFolderIsCalled) {
  const std::string text = FormatSummary(Json::object(), "/home/a b/it's");
  EXPECT_THAT(text, HasSubstr("millrace chat '/home/a b/it'\\''s'\n"));
  EXPECT_THAT(text, HasSubstr("sqlite3 '/home/a b/it'\\''s/buffer.sqlite' "));
}

TEST(FormatSummaryTest, SaysWhatCameOutAndWhereItIs) {
  const Json figure = {{"problems", 200},    {"samples", 800}, {"correct", 790},
                       {"accuracy", 0.9875}, {"low", 0.97},    {"high", 0.995}};
  const Json summary = {{"run", "quickstart"},
                        {"task", "log_json"},
                        {"seed", 3},
                        {"steps", 16},
                        {"versions", 17},
                        {"before", {{"sampled", Eval("before", "sampled", 0.241)}}},
                        {"after", {{"sampled", figure}, {"greedy", figure}}},
                        {"baseline", {{"accuracy", 0.35}}},
                        {"generated_tokens", 123456},
                        {"trained_tokens", 54321},
                        {"groups_trained", 128},
                        {"dropped_groups", {{"no_gradient", 60}, {"stale", 2}}},
                        {"seconds", {{"train", 90.0}, {"evaluate", 30.0}}},
                        {"peak_memory_bytes", {{"learner", 2500000000}, {"buffer", 40000000}}}};
  const std::string text = FormatSummary(summary, "runs/q");
  for (const char* expected :
       {"Run quickstart is finished (task log_json, seed 3)", "24.1 % (95 %: 20.0 % to 28.0 %",
        "98.8 % (95 %: 97.0 % to 99.5 %; 790 of 800 right)", "after, greedy",
        "35.0 % (plain code, no model)", "16 (versions 17)", "123456 generated, 54321 trained on",
        "128 trained on, 62 dropped (no_gradient 60, stale 2)", "train 1m30s", "learner 2.50 GB",
        "buffer 40 MB", "runs/q/config.toml", "runs/q/buffer.sqlite", "runs/q/checkpoints",
        "millrace chat runs/q"}) {
    EXPECT_THAT(text, HasSubstr(expected));
  }
}

class ProgressDisplayTest : public TempDirTest {
 protected:
  std::string Show(bool terminal, const std::function<void(ProgressDisplay&)>& use) {
    FILE* out = fopen(Path("out").c_str(), "w");
    ProgressDisplay display(dir_, {out, terminal, 10, 0});
    use(display);
    fclose(out);
    return Read("out");
  }
};

TEST_F(ProgressDisplayTest, AFileGetsPlainLinesOfWhatIsNewOnly) {
  Write("metrics.jsonl", Step(1).dump() + "\n");
  const std::string text = Show(false, [&](ProgressDisplay& display) {
    display.Update();
    Write("metrics.jsonl", Step(1).dump() + "\n");
    display.Update();
    FILE* f = fopen(Path("metrics.jsonl").c_str(), "a");
    fputs((Step(2).dump() + "\n").c_str(), f);
    fclose(f);
    display.Update();
    display.PrintLine("a notice");
    display.Finish();
  });
  EXPECT_THAT(text, AllOf(HasSubstr("step 2/10"), Not(HasSubstr("step 1/10")),
                          HasSubstr("a notice\n"), Not(HasSubstr("\x1b"))));
}

TEST_F(ProgressDisplayTest, ATerminalGetsOneLineThatIsRewritten) {
  const std::string text = Show(true, [&](ProgressDisplay& display) {
    display.Update();
    Write("metrics.jsonl", Step(3).dump() + "\n");
    Write("eval.jsonl", Eval("periodic", "sampled", 0.5).dump() + "\n");
    display.Update();
    display.Finish();
  });
  EXPECT_THAT(text, AllOf(HasSubstr("\r\x1b[Kstarting"), HasSubstr("3/10 | reward 0.75"),
                          HasSubstr("held-out at step 0"), Not(HasSubstr("step 3/10:"))));
}

}  // namespace
}  // namespace millrace
