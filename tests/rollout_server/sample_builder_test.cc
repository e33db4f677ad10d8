#include "rollout_server/sample_builder.h"

#include "tests/rollout_server/fakes.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::CopyTask;
using ::millrace::testing::MakeLease;
using ::millrace::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TrajectoryOrigin Origin() {
  TrajectoryOrigin origin{"run-a", "rollout-0", 0.7f, MakeLease(5, 42)};
  origin.lease.attempt = 2;
  return origin;
}

PreparedProblem Prompt() {
  PreparedProblem prepared;
  prepared.prompt = {10, 11, 12};
  prepared.prompt_text = "abc";
  return prepared;
}

SampleOutcome Outcome() {
  SampleOutcome outcome;
  outcome.sample.index = 1;
  outcome.sample.token_ids = {7, 8};
  outcome.sample.logprobs = {-0.5f, -1.5f};
  outcome.sample.versions = {{3, 0, 1}, {4, 1, 2}};
  outcome.sample.seconds = 0.25;
  outcome.completion_text = "xy";
  outcome.verdict = Verdict{1.5, true, {{"exact", 1}, {"format", 0.5}}};
  outcome.ended_unix_us = 99;
  return outcome;
}

TEST(BuildTrajectory, PutsThePromptBeforeTheSampleAndShiftsTheSpans) {
  const Trajectory t = BuildTrajectory(Origin(), Prompt(), Outcome());
  EXPECT_OK(ValidateTrajectory(t));
  EXPECT_THAT(t.token_ids, ElementsAre(10, 11, 12, 7, 8));
  EXPECT_THAT(t.loss_mask, ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(t.logprobs, ElementsAre(0, 0, 0, -0.5f, -1.5f));
  EXPECT_THAT(t.versions, ElementsAre(VersionSpan{3, 3, 4}, VersionSpan{4, 4, 5}));
}

TEST(BuildTrajectory, CarriesKeyVerdictAndProvenance) {
  const Trajectory t = BuildTrajectory(Origin(), Prompt(), Outcome());
  EXPECT_EQ(t.key, (TrajectoryKey{"run-a", 5, 1, 2}));
  EXPECT_EQ(t.task, "copy");
  EXPECT_EQ(t.problem_id, 42u);
  EXPECT_EQ(t.status, TrajectoryStatus::kCompleted);
  EXPECT_EQ(t.reward, 1.5);
  EXPECT_THAT(t.reward_components,
              ElementsAre(RewardComponent{"exact", 1}, RewardComponent{"format", 0.5}));
  EXPECT_EQ(t.sampling_seed, SampleStream(1005, 1));
  EXPECT_EQ(t.temperature, 0.7f);
  EXPECT_EQ(t.server, "rollout-0");
  EXPECT_EQ(t.created_unix_us, 99);
  EXPECT_EQ(t.generate_seconds, 0.25);
  EXPECT_EQ(t.prompt_text, "abc");
  EXPECT_EQ(t.completion_text, "xy");
}

TEST(BuildTrajectory, StatusFollowsTheReasonAndTheVerdict) {
  const struct {
    const char* what;
    FinishReason reason;
    absl::StatusOr<Verdict> verdict;
    TrajectoryStatus status;
    double reward;
  } cases[] = {
      {"stopped", FinishReason::kStop, Verdict{1, true, {}}, TrajectoryStatus::kCompleted, 1},
      {"length", FinishReason::kLength, Verdict{0.5, false, {}}, TrajectoryStatus::kTruncated, 0.5},
      {"cancelled", FinishReason::kCancelled, Verdict{1, true, {}}, TrajectoryStatus::kAborted, 0},
      {"no verdict", FinishReason::kStop, absl::InternalError("sandbox died"),
       TrajectoryStatus::kFailed, 0},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    SampleOutcome outcome = Outcome();
    outcome.sample.reason = c.reason;
    outcome.verdict = c.verdict;
    const Trajectory t = BuildTrajectory(Origin(), Prompt(), outcome);
    EXPECT_OK(ValidateTrajectory(t));
    EXPECT_EQ(t.status, c.status);
    EXPECT_EQ(t.reward, c.reward);
    EXPECT_EQ(t.status_detail.empty(), c.status == TrajectoryStatus::kCompleted);
  }
}

TEST(BuildTrajectory, ASampleCancelledBeforeItsFirstTokenIsStillValid) {
  SampleOutcome outcome = Outcome();
  outcome.sample = GeneratedSample();
  outcome.sample.reason = FinishReason::kCancelled;
  EXPECT_OK(ValidateTrajectory(BuildTrajectory(Origin(), Prompt(), outcome)));
}

TEST(FailedTrajectory, IsValidWithAndWithoutAPrompt) {
  const std::vector<int32_t> long_prompt(1000, 5);
  for (absl::Span<const int32_t> prompt :
       {absl::Span<const int32_t>(), absl::Span<const int32_t>(long_prompt)}) {
    const Trajectory t = FailedTrajectory(Origin(), 3, prompt, absl::InternalError("no luck"));
    EXPECT_OK(ValidateTrajectory(t));
    EXPECT_EQ(t.status, TrajectoryStatus::kFailed);
    EXPECT_THAT(t.status_detail, HasSubstr("no luck"));
    EXPECT_EQ(t.key.index, 3u);
    EXPECT_LE(t.token_ids.size(), 64u);
  }
}

TEST(PrepareProblem, EncodesThePrompt) {
  const auto tokenizer = Tokenizer::Bytes();
  ASSERT_OK_AND_ASSIGN(const PreparedProblem p,
                       PrepareProblem(CopyTask(), *tokenizer, Split::kTrain, 7));
  EXPECT_EQ(p.prompt_text, "copy 7: ");
  EXPECT_EQ(tokenizer->Decode(p.prompt), "copy 7: ");
  EXPECT_OK(CheckPromptLength(p, 8));
  EXPECT_THAT(CheckPromptLength(p, 7), StatusIs(absl::StatusCode::kResourceExhausted,
                                                AllOf(HasSubstr("8 tokens"), HasSubstr("is 7"))));
}

TEST(PrepareProblem, AThrowingTaskIsAnErrorThatNamesTheProblem) {
  EXPECT_THAT(PrepareProblem(CopyTask(), *Tokenizer::Bytes(), Split::kTrain, 13),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("train/13")));
}

TEST(VerifyGuarded, AThrowingVerifierIsAnError) {
  Problem problem;
  problem.id = 14;
  EXPECT_THAT(VerifyGuarded(CopyTask(), problem, "x"),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("verifier fell over")));
}

TEST(MakeStopCheck, FiresOnTheTokenThatCompletesAStopString) {
  const auto tokenizer = Tokenizer::Bytes();
  const auto stop = MakeStopCheck(tokenizer.get(), {"END", "\n\n"});
  const std::string text = "E\nN EN END x \n\n";
  std::vector<int32_t> tokens;
  std::vector<size_t> fired;
  for (size_t i = 0; i < text.size(); ++i) {
    tokens.push_back(static_cast<unsigned char>(text[i]));
    if (stop(tokens)) fired.push_back(i);
  }
  EXPECT_THAT(fired, ElementsAre(text.find("END") + 2, text.size() - 1));
  EXPECT_EQ(MakeStopCheck(tokenizer.get(), {}), nullptr);
}

}  // namespace
}  // namespace millrace
