// The tasks of configs/recipes: ten thousand problems of each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "environments/few_shot_task.h"
#include "environments/json_answer.h"
#include "environments/run_task.h"
#include "environments/task.h"
#include "environments/weighted_order.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kProblems = 10000;

struct Case {
  const char* name;
  std::vector<std::string> parts;
  uint64_t hash;  // of all problems of seed 1, the same on every platform
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::string Asked(const Problem& problem) {
  return problem.messages.empty() ? problem.text : problem.messages.back().content;
}

class RecipeTask : public ::testing::TestWithParam<Case> {
 protected:
  static std::unique_ptr<Task> Make(uint64_t seed = 1, bool partial_credit = true) {
    TaskOptions options;
    options.name = GetParam().name;
    options.seed = seed;
    options.partial_credit = partial_credit;
    options.parts = GetParam().parts;
    return MakeTask(options).value();
  }
};

TEST_P(RecipeTask, TheVerifierAcceptsTheDemonstrationAndRefusesEveryMutationOfIt) {
  const auto task = Make();
  for (uint64_t id = 0; id < kProblems; ++id) {
    const Problem problem = task->Make(id % 2 == 0 ? Split::kTrain : Split::kEval, id);
    const std::string& right = problem.demonstration;
    const Verdict good = task->Verify(problem, right);
    ASSERT_TRUE(good.correct) << right;
    ASSERT_EQ(good.reward, 1) << right;
    ASSERT_TRUE(task->Verify(problem, absl::StrCat(" ", right, "\n")).correct) << right;
    std::string changed = right;
    char& c = changed[(id * 7919) % right.size()];
    c = absl::ascii_isdigit(static_cast<unsigned char>(c))
            ? (c == '9' ? '0' : static_cast<char>(c + 1))
        : c == 'x' ? 'y'
                   : 'x';
    for (const std::string& wrong :
         {changed, right + right, right + " ok", "Sure: " + right, right.substr(1),
          right.substr(0, right.size() - 1), std::string(), std::string("{}"), std::string("null"),
          std::string("\xff\xfe{")}) {
      const Verdict bad = task->Verify(problem, wrong);
      ASSERT_FALSE(bad.correct) << wrong << " for " << right;
      ASSERT_LE(bad.reward, 0.4) << wrong;
      ASSERT_GE(bad.reward, 0) << wrong;
    }
  }
}

TEST_P(RecipeTask, NoHeldOutProblemIsTrainedOnOrShownUnderAnySeed) {
  std::set<std::string> held_out;
  for (uint64_t seed : {1, 2}) {
    const auto task = Make(seed);
    for (uint64_t id = 0; id < kProblems / 2; ++id) {
      held_out.insert(Asked(task->Make(Split::kEval, id)));
    }
  }
  for (uint64_t seed : {1, 3}) {
    const auto task = Make(seed);
    for (uint64_t id = 0; id < kProblems / 2; ++id) {
      const Problem problem = task->Make(Split::kTrain, id);
      for (const ChatMessage& message : problem.messages) {
        ASSERT_FALSE(held_out.contains(message.content)) << message.content << ", seed " << seed;
      }
    }
  }
}

TEST_P(RecipeTask, TheSameSeedAndIdMakeTheSameProblemOnEveryPlatform) {
  const auto task = Make(), other = Make(2);
  uint64_t hash = 0;
  int differ = 0;
  for (uint64_t id = 0; id < kProblems; ++id) {
    const Problem problem = task->Make(id % 2 == 0 ? Split::kTrain : Split::kEval, id);
    EXPECT_EQ(problem.id, id);
    for (const ChatMessage& message : problem.messages) {
      for (char c : message.role + message.content) {
        hash = MixWord(hash ^ static_cast<uint8_t>(c)) + 1;
      }
    }
    for (char c : problem.reference) hash = MixWord(hash ^ static_cast<uint8_t>(c)) + 1;
    differ += Asked(problem) != Asked(other->Make(id % 2 == 0 ? Split::kTrain : Split::kEval, id));
  }
  EXPECT_EQ(hash, GetParam().hash);
  EXPECT_GT(differ, static_cast<int>(kProblems) * 9 / 10);
}

TEST_P(RecipeTask, ProblemsAreVaried) {
  const auto task = Make();
  std::set<std::string> train, eval;
  for (uint64_t id = 0; id < 1000; ++id) {
    train.insert(Asked(task->Make(Split::kTrain, id)));
    eval.insert(Asked(task->Make(Split::kEval, id)));
  }
  EXPECT_GT(train.size(), 950u);
  EXPECT_GT(eval.size(), 850u);
}

TEST_P(RecipeTask, WithoutPartialCreditTheRewardIsOneOrNothing) {
  const auto task = Make(1, false);
  for (uint64_t id = 0; id < 100; ++id) {
    const Problem problem = task->Make(Split::kTrain, id);
    const Verdict good = task->Verify(problem, problem.demonstration);
    EXPECT_EQ(good.reward, 1);
    ASSERT_EQ(good.components.size(), 1u);
    EXPECT_EQ(task->Verify(problem, "{\"a\": 1}").reward, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, RecipeTask,
                         ::testing::Values(Case{"sentence_json", {}, 12055692312955999134u},
                                           Case{"order_json", {}, 6914692455336157612u},
                                           Case{"dates", {}, 5396054602867974794u},
                                           Case{"calculator", {}, 987512973769154580u},
                                           Case{"mixture", {}, 17049235919114590692u}),
                         [](const auto& info) { return std::string(info.param.name); });

Verdict Judge(const char* task, const std::string& reference, const std::string& completion) {
  Problem problem;
  problem.reference = reference;
  return MakeTask({.name = task}).value()->Verify(problem, completion);
}

TEST(RecipeTasks, TheDemonstrationsAreWhatTheFieldsSay) {
  const std::pair<const char*, const char*> cases[] = {
      {"sentence_json", R"(\{"name": "[A-Z][a-z]+", "age": \d\d, "city": "[A-Z][a-z]+"\})"},
      {"order_json", R"(\{"[a-z]+": \d+, "[a-z]+": \d+\})"},
      {"dates", R"((19|20)\d\d-(0[1-9]|1[0-2])-([0-2]\d|3[01]))"},
      {"calculator", R"re(\{"op": "(add|sub|mul)", "a": \d+, "b": \d+\})re"}};
  for (const auto& [name, form] : cases) {
    const auto task = MakeTask({.name = name}).value();
    for (uint64_t id = 0; id < 500; ++id) {
      const std::string text = task->Make(Split::kTrain, id).demonstration;
      EXPECT_TRUE(std::regex_match(text, std::regex(form))) << name << ": " << text;
    }
  }
}

TEST(RecipeTasks, PartialCreditGrowsWithWhatIsRight) {
  const std::string json = R"({"name": "Maria", "age": 34, "city": "Paris"})";
  const std::pair<const char*, double> cases[] = {
      {"no", 0},
      {"[1]", 0},
      {R"({"x": 1})", 0.1},
      {R"({"name": "Maria"})", 0.2},
      {R"({"name": "Maria", "age": "34", "city": "Paris"})", 0.3},
      {R"({"name": "Maria", "age": 34.0, "city": "Paris"})", 0.3},
      {R"({"name": "Maria", "age": 34, "city": "Paris", "x": 1})", 0.325},
      {R"({"city": "Paris", "name": "Maria", "age": 34})", 1}};
  for (const auto& [text, reward] : cases) {
    const Verdict verdict = Judge("sentence_json", json, text);
    EXPECT_NEAR(verdict.reward, reward, 1e-12) << text;
    EXPECT_EQ(verdict.correct, reward == 1) << text;
    double sum = 0;
    for (const RewardComponent& component : verdict.components) sum += component.value;
    EXPECT_NEAR(sum, verdict.reward, 1e-12);
  }
  EXPECT_NEAR(Judge("dates", "2021-03-04", "2021-03-05").reward, 0.3, 1e-12);
  EXPECT_NEAR(Judge("dates", "2021-03-04", "1999-01-05").reward, 0.1, 1e-12);
  EXPECT_EQ(Judge("dates", "2021-03-04", "2021/03/04").reward, 0);
  EXPECT_EQ(Judge("dates", "2021-03-04", "2021-3-4").reward, 0);
}

TEST(RecipeTasks, ARegularExpressionSolvesOnePhrasing) {
  for (const auto& [name, share] :
       {std::pair("sentence_json", 1.0 / 3), std::pair("order_json", 1.0 / 4)}) {
    const auto task = MakeTask({.name = name}).value();
    int solved = 0;
    for (uint64_t id = 0; id < 4000; ++id) {
      const Problem problem = task->Make(Split::kEval, id);
      solved += task->Verify(problem, *task->Baseline(problem)).correct ? 1 : 0;
    }
    EXPECT_NEAR(solved / 4000.0, share, 0.03) << name;
  }
}

TEST(JsonAnswer, IsStrictOnEveryLevel) {
  EXPECT_TRUE(ParseJsonAnswer(R"({"a": {"b": 1, "b": 2}})").is_discarded());
  EXPECT_FALSE(ParseJsonAnswer(R"([{"a": 1}, {"a": 2}])").is_discarded());
  EXPECT_TRUE(ParseJsonAnswer(std::string(100000, '[')).is_discarded());
  EXPECT_TRUE(ParseJsonAnswer(std::string(100, '[') + std::string(100, ']')).is_discarded());
  EXPECT_TRUE(SameJson(ParseJsonAnswer("[1, {\"a\": 2}]"), ParseJsonAnswer("[1,{\"a\":2}]")));
  EXPECT_FALSE(SameJson(ParseJsonAnswer("[1, {\"a\": 2}]"), ParseJsonAnswer("[1,{\"a\":2.0}]")));
  EXPECT_FALSE(SameJson(ParseJsonAnswer("1"), ParseJsonAnswer("true")));
}

TEST(Mixture, GivesEveryPartItsShareAndKeepsTheirProblems) {
  TaskOptions options;
  options.name = "mixture";
  options.parts = {"dates:2", "log_json", "sums"};
  const auto mixture = MakeTask(options).value();
  const auto dates = MakeTask({.name = "dates"}).value();
  std::map<std::string, int> seen;
  uint64_t next = 0;
  for (uint64_t id = 0; id < 400; ++id) {
    const Problem problem = mixture->Make(Split::kTrain, id);
    seen[problem.source] += 1;
    EXPECT_TRUE(mixture->Verify(problem, problem.demonstration).correct) << problem.source;
    EXPECT_FALSE(mixture->Verify(problem, "no").correct) << problem.source;
    if (problem.source == "dates") {
      EXPECT_EQ(Asked(problem), Asked(dates->Make(Split::kTrain, next++)));
    }
  }
  EXPECT_EQ(seen["dates"], 200);
  EXPECT_EQ(seen["log_json"], 100);
  EXPECT_EQ(seen["sums"], 100);
  EXPECT_EQ(mixture->Baseline(mixture->Make(Split::kEval, 0)), std::nullopt);  // dates has none
  options.parts = {"sentence_json", "log_json"};
  const auto with_baseline = MakeTask(options).value();
  EXPECT_TRUE(with_baseline->Baseline(with_baseline->Make(Split::kEval, 0)).has_value());
}

TEST(Mixture, SaysWhatIsWrongWithItsParts) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"dates", "dates:2"}, "two parts called dates"},
      {{"mixture"}, "part of itself"},
      {{"chess"}, "no task \"chess\""},
      {{"dates:0"}, "weight 0 is not above 0"},
      {{":2"}, "name is missing"}};
  for (const auto& [parts, message] : cases) {
    TaskOptions options;
    options.name = "mixture";
    options.parts = parts;
    EXPECT_THAT(std::string(MakeTask(options).status().message()), HasSubstr(message));
  }
}

TEST(WeightedOrder, IsEvenlySpreadAndCountsItsOrdinals) {
  const WeightedOrder order({2, 1, 1});
  std::vector<size_t> sources;
  for (uint64_t i = 0; i < 8; ++i) sources.push_back(order.At(i).source);
  EXPECT_THAT(sources, ElementsAre(0, 1, 2, 0, 0, 1, 2, 0));
  const WeightedOrder odd({0.7, 0.001, 3});
  std::map<size_t, uint64_t> count;
  for (uint64_t i = 0; i < 5000; ++i) {
    const WeightedOrder::Slot slot = odd.At(i);
    ASSERT_EQ(slot.ordinal, count[slot.source]++) << i;
  }
  EXPECT_NEAR(static_cast<double>(count[0]) / 5000, 0.7 / 3.701, 0.01);
  EXPECT_GE(count[1], 4u);
}

TEST(WeightedOrder, NamesMayHaveColons) {
  EXPECT_EQ(ParseWeightedName("a:b")->name, "a:b");
  EXPECT_EQ(ParseWeightedName(" data/x.jsonl:2.5 ")->name, "data/x.jsonl");
  EXPECT_EQ(ParseWeightedName("data/x.jsonl:2.5")->weight, 2.5);
  EXPECT_THAT(ParseWeightedName("a:-1"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(RunTask, ChecksTheDigestOfTheProblems) {
  RunConfig config;
  config.task.name = "dates";
  EXPECT_OK(MakeRunTask(config));
  config.task.digest = "0123";
  EXPECT_THAT(MakeRunTask(config),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("0123")));
}

}  // namespace
}  // namespace millrace
