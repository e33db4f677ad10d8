#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "environments/task.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::unique_ptr<Task> LogJson(uint64_t seed = 1) {
  return MakeTask({.name = "log_json", .seed = seed}).value();
}
std::unique_ptr<Task> Sums(uint64_t seed = 1, int64_t max_number = 99) {
  return MakeTask({.name = "sums", .seed = seed, .max_number = max_number}).value();
}

// What a problem asks: the last message, or the text.
std::string Asked(const Problem& problem) {
  return problem.messages.empty() ? problem.text : problem.messages.back().content;
}

TEST(Tasks, AnUnknownTaskIsAnsweredWithThoseThereAre) {
  EXPECT_THAT(MakeTask({.name = "chess"}).status(),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("chess"), HasSubstr("log_json"), HasSubstr("sums"))));
  for (const std::string& name : TaskNames()) {
    if (name == "dataset") continue;  // needs files
    const auto task = MakeTask({.name = name});
    ASSERT_TRUE(task.ok()) << name;
    EXPECT_EQ((*task)->name(), name);
  }
}

class QuickstartTask : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Task> Make(uint64_t seed) const {
    return MakeTask({.name = GetParam(), .seed = seed}).value();
  }
};

TEST_P(QuickstartTask, NoHeldOutProblemIsTrainedOnUnderAnySeed) {
  std::set<std::string> held_out;
  for (uint64_t seed : {1, 2, 3}) {
    const auto task = Make(seed);
    for (uint64_t id = 0; id < 3000; ++id) held_out.insert(Asked(task->Make(Split::kEval, id)));
  }
  for (uint64_t seed : {1, 4}) {
    const auto task = Make(seed);
    for (uint64_t id = 0; id < 5000; ++id) {
      const Problem problem = task->Make(Split::kTrain, id);
      ASSERT_FALSE(held_out.contains(Asked(problem))) << "seed " << seed << " id " << id;
      for (const ChatMessage& message : problem.messages) {
        ASSERT_FALSE(held_out.contains(message.content)) << "seed " << seed << " id " << id;
      }
    }
  }
}

TEST_P(QuickstartTask, TheSameSeedAndIdMakeTheSameProblem) {
  const auto one = Make(7), two = Make(7), other = Make(8);
  int differ = 0;
  for (uint64_t id = 0; id < 100; ++id) {
    for (Split split : {Split::kTrain, Split::kEval}) {
      EXPECT_EQ(Asked(one->Make(split, id)), Asked(two->Make(split, id)));
      EXPECT_EQ(one->Make(split, id).reference, two->Make(split, id).reference);
      differ += Asked(one->Make(split, id)) != Asked(other->Make(split, id));
    }
  }
  EXPECT_GT(differ, 150);
}

TEST_P(QuickstartTask, HeldOutProblemsRepeatOnlyWhenTheyMust) {
  const auto task = Make(1);
  std::set<std::string> seen;
  for (uint64_t id = 0; id < 800; ++id) seen.insert(Asked(task->Make(Split::kEval, id)));
  EXPECT_EQ(seen.size(), 800u);
}

TEST_P(QuickstartTask, DemonstrationsAreRightAndJunkIsNot) {
  const auto task = Make(1);
  for (uint64_t id = 0; id < 1000; ++id) {
    const Problem problem = task->Make(id % 2 == 0 ? Split::kTrain : Split::kEval, id);
    const Verdict good = task->Verify(problem, problem.demonstration);
    EXPECT_TRUE(good.correct) << problem.demonstration;
    EXPECT_EQ(good.reward, 1);
    ASSERT_EQ(good.components.size(), 1u);
    EXPECT_EQ(good.components[0].name, "exact");
    for (const std::string& junk :
         {std::string(), std::string("x"), problem.demonstration + problem.demonstration,
          problem.demonstration.substr(1), problem.demonstration + " ok",
          std::string("\xff\xfe{")}) {
      const Verdict bad = task->Verify(problem, junk);
      EXPECT_FALSE(bad.correct) << junk;
      EXPECT_EQ(bad.reward, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuickstartTask, ::testing::Values("log_json", "sums"),
                         [](const auto& param) { return std::string(param.param); });

TEST(LogJson, PromptsHaveOneWorkedExample) {
  const Problem problem = LogJson()->Make(Split::kTrain, 3);
  ASSERT_EQ(problem.messages.size(), 3u);
  EXPECT_EQ(problem.messages[0].role, "user");
  EXPECT_EQ(problem.messages[1].role, "assistant");
  EXPECT_EQ(problem.messages[2].role, "user");
  const char* prompt = "Log line to JSON with keys level, host, ms: ";
  EXPECT_THAT(problem.messages[0].content, ::testing::StartsWith(prompt));
  EXPECT_THAT(problem.messages[2].content, ::testing::StartsWith(prompt));
  EXPECT_THAT(problem.messages[1].content,
              MatchesRegex(R"(\{"level": "[A-Z]+", "host": "[a-z]+-[0-9]+", "ms": [0-9]+\})"));
}

TEST(LogJson, TheRegularExpressionSolvesTheMainFormatOnly) {
  const auto task = LogJson();
  int solved = 0;
  constexpr int kProblems = 4000;
  for (uint64_t id = 0; id < kProblems; ++id) {
    const Problem problem = task->Make(Split::kEval, id);
    const bool main_format = Asked(problem).find(" latency=") != std::string::npos;
    const bool right = task->Verify(problem, *task->Baseline(problem)).correct;
    EXPECT_EQ(right, main_format) << Asked(problem);
    solved += right;
  }
  EXPECT_GT(solved, kProblems * 0.55);
  EXPECT_LT(solved, kProblems * 0.65);
}

TEST(LogJson, TheVerifierIsStrictAboutTheObjectAndLenientAboutAFence) {
  const auto task = LogJson();
  Problem problem;
  problem.reference = R"({"level": "WARN", "host": "db-7", "ms": 31})";
  const std::pair<const char*, bool> cases[] = {
      {R"({"level": "WARN", "host": "db-7", "ms": 31})", true},
      {R"(  {"ms":31,"host":"db-7","level":"WARN"}
)",
       true},
      {"```json\n{\"level\": \"WARN\", \"host\": \"db-7\", \"ms\": 31}\n```", true},
      {"```\n{\"level\": \"WARN\", \"host\": \"db-7\", \"ms\": 31}\n```\n", true},
      {"```json\n{\"level\": \"WARN\", \"host\": \"db-7\", \"ms\": 31}", false},
      {"``````", false},
      {"```", false},
      {R"({"level": "WARN", "host": "db-7", "ms": 31.0})", false},
      {R"({"level": "WARN", "host": "db-7", "ms": "31"})", false},
      {R"({"level": "WARN", "host": "db-7", "ms": 32})", false},
      {R"({"level": "warn", "host": "db-7", "ms": 31})", false},
      {R"({"level": "WARN", "host": "db-7"})", false},
      {R"({"level": "WARN", "host": "db-7", "ms": 31, "x": 1})", false},
      {R"({"level": "WARN", "host": "db-7", "ms": 31, "ms": 31})", false},
      {R"({"level": "INFO", "level": "WARN", "host": "db-7", "ms": 31})", false},
      {R"([{"level": "WARN", "host": "db-7", "ms": 31}])", false},
      {R"(Sure: {"level": "WARN", "host": "db-7", "ms": 31})", false},
      {R"({"level": "WARN", "host": "db-7", "ms": 31)", false},
      {"null", false},
  };
  for (const auto& [text, right] : cases) {
    EXPECT_EQ(task->Verify(problem, text).correct, right) << text;
  }
}

TEST(Sums, DemonstrationsAddColumnByColumn) {
  const auto task = Sums();
  std::map<std::string, std::string> shown;
  for (uint64_t id = 0; id < 60000; ++id) {
    const Problem problem = task->Make(Split::kTrain, id);
    shown[problem.text] = problem.demonstration;
    ASSERT_LE(problem.text.size(), 20u);
    ASSERT_LE(problem.demonstration.size(), 40u);
  }
  EXPECT_GT(shown.size(), 6500u);  // 7/8 of 8100 pairs
  int checked = 0;
  for (const auto& [text, demonstration] :
       {std::pair("What is 47 + 85?\n", "<think>7+5=12 4+8+1=13</think>\n#### 132"),
        std::pair("What is 12 + 34?\n", "<think>2+4=6 1+3+0=4</think>\n#### 46"),
        std::pair("What is 90 + 10?\n", "<think>0+0=0 9+1+0=10</think>\n#### 100")}) {
    if (!shown.contains(text)) continue;  // held out
    EXPECT_EQ(shown[text], demonstration);
    ++checked;
  }
  EXPECT_GT(checked, 0);
}

TEST(Sums, TheVerifierWantsOneScratchLineAndTheSum) {
  const auto task = Sums();
  Problem problem;
  problem.reference = "46";
  const std::pair<const char*, bool> cases[] = {
      {"<think>2+4=6 1+3+0=4</think>\n#### 46", true},
      {"<think>anything</think>\n#### 46\n", true},
      {"<think></think>\n#### 46", false},
      {"#### 46", false},
      {"<think>a</think>\n#### 45", false},
      {"<think>a</think>\n#### 046", false},
      {"<think>a</think>\n#### 46 or 47", false},
      {"<think>a</think>\n####46", false},
      {"<think>a</think> #### 46", false},
      {"<think>a\nb</think>\n#### 46", false},
      {"<think>a</think><think>b</think>\n#### 46", false},
      {"<think>a</think>\n#### 46\n#### 46", false},
      {" <think>a</think>\n#### 46", false},
      {"<think>a</think>\n#### ", false},
  };
  for (const auto& [text, right] : cases) {
    EXPECT_EQ(task->Verify(problem, text).correct, right) << text;
  }
  EXPECT_EQ(task->Baseline(problem), std::nullopt);
}

TEST(Sums, RefusesSizesItCannotSplit) {
  for (int64_t max_number : {-1, 0, 8, 12, 105, 1000}) {
    EXPECT_THAT(MakeTask({.name = "sums", .max_number = max_number}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(absl::StrCat(max_number))));
  }
  EXPECT_EQ(Sums(1, 9)->Make(Split::kTrain, 0).text.size(), 15u);
  EXPECT_EQ(Sums(1, 999)->Make(Split::kTrain, 0).text.size(), 19u);
}

}  // namespace
}  // namespace millrace
