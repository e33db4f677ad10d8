// Datasets: files to problems, what is held out, what is refused, and how answers are judged.
#include "environments/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "environments/dataset_task.h"
#include "environments/pattern.h"
#include "environments/task.h"
#include "environments/verifier.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class DatasetTest : public ::testing::Test {
 protected:
  DatasetTest() {
    std::string pattern = JoinPath(::testing::TempDir(), "dataset_test_XXXXXX");
    dir_ = mkdtemp(pattern.data());
    data_.near_duplicates = 0;
  }
  ~DatasetTest() override { EXPECT_OK(RemoveRecursively(dir_)); }

  std::string Write(const std::string& name, const std::string& text) {
    EXPECT_OK(WriteFileAtomically(JoinPath(dir_, name), text));
    return JoinPath(dir_, name);
  }
  static std::string Line(const std::string& question, const std::string& answer) {
    return nlohmann::json({{"question", question}, {"answer", answer}}).dump() + "\n";
  }
  static std::string Lines(const std::string& word, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      text += Line(absl::StrCat(word, " ", i, "?"), absl::StrCat(i));
    }
    return text;
  }
  void ExpectRefused(const std::string& message) {
    EXPECT_THAT(LoadDataset(data_), StatusIs(kInvalid, HasSubstr(message)));
  }

  std::string dir_;
  RunConfig::Data data_;
};

TEST_F(DatasetTest, SplitsByTheHashOfThePromptWhateverTheOrderAndCompany) {
  data_.files = {Write("a.jsonl", Lines("one", 400))};
  data_.eval_fraction = 0.25;
  ASSERT_OK_AND_ASSIGN(const Dataset first, LoadDataset(data_));
  EXPECT_NEAR(static_cast<double>(first.eval.size()), 100, 25);
  std::map<std::string, bool> held_out;
  for (const DatasetItem& item : first.eval) held_out[item.prompt] = true;
  for (const DatasetItem& item : first.train[0]) held_out[item.prompt] = false;
  EXPECT_EQ(held_out.size(), 400u);
  data_.files = {Write("b.jsonl", Lines("two", 50) + Lines("one", 400))};
  ASSERT_OK_AND_ASSIGN(const Dataset second, LoadDataset(data_));
  for (const DatasetItem& item : second.eval) {
    if (held_out.contains(item.prompt)) {
      EXPECT_TRUE(held_out[item.prompt]) << item.prompt;
    }
  }
  EXPECT_NE(first.digest, second.digest);
}

TEST_F(DatasetTest, NearDuplicatesAreNeverOnBothSides) {
  data_.near_duplicates = 0.6;
  std::string text;
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    std::string words;
    for (int k = 0; k < 20; ++k) absl::StrAppend(&words, "w", random() % 1000, " ");
    text += Line(words + "end", "1") + Line(words + "End!", "1");
  }
  data_.files = {Write("a.jsonl", text)};
  data_.eval_fraction = 0.3;
  ASSERT_OK_AND_ASSIGN(const Dataset data, LoadDataset(data_));
  EXPECT_GT(data.near_duplicates, 20);
  std::set<std::string> train;
  for (const DatasetItem& item : data.train[0]) train.insert(item.prompt.substr(0, 60));
  EXPECT_GT(data.eval.size(), 100u);
  for (const DatasetItem& item : data.eval) {
    EXPECT_FALSE(train.contains(item.prompt.substr(0, 60))) << item.prompt;
  }
  EXPECT_THAT(data.notes, Contains(HasSubstr("near-duplicates put on the side of their like")));
}

TEST_F(DatasetTest, WhatResemblesAGivenHeldOutProblemIsNotTrainedOn) {
  data_.near_duplicates = 0.7;
  const std::string long_text = "a b c d e f g h i j k l m n o p";
  data_.files = {Write("a.jsonl", Line("x y z", "1") + Line(long_text + " 1", "1"))};
  data_.eval_files = {Write("e.jsonl", Line(long_text + " 2", "2"))};
  ASSERT_OK_AND_ASSIGN(const Dataset data, LoadDataset(data_));
  ASSERT_EQ(data.train[0].size(), 1u);
  EXPECT_EQ(data.train[0][0].prompt, "x y z");
  EXPECT_EQ(data.eval.size(), 1u);
  EXPECT_EQ(data.near_duplicates, 1);
  EXPECT_THAT(data.notes, Contains(AllOf(HasSubstr("a.jsonl:2 ~"), HasSubstr("e.jsonl:1"))));
}

TEST_F(DatasetTest, AHeldOutProblemThatIsTrainedOnIsRefused) {
  data_.files = {Write("a.jsonl", Lines("q", 5))};
  data_.eval_files = {
      Write("e.jsonl", Line("other", "1") + Line(" q  3?", "3") + Line("q 4?", "4"))};
  ExpectRefused("2 problems are both trained on and held out (first: ");
  ExpectRefused("e.jsonl:2 = ");
  ExpectRefused("a.jsonl:4)");
}

TEST_F(DatasetTest, RepeatedPromptsCountOnceAndContradictionsAreNamed) {
  data_.files = {Write("a.jsonl", Lines("q", 50) + Line("q  3?", "3") + Line("q 4?", "5"))};
  ASSERT_OK_AND_ASSIGN(const Dataset data, LoadDataset(data_));
  EXPECT_EQ(data.train[0].size() + data.eval.size(), 50u);
  EXPECT_EQ(data.duplicates, 2);
  EXPECT_EQ(data.contradictions, 1);
  EXPECT_THAT(data.notes, Contains(AllOf(HasSubstr("a.jsonl:52 and "), HasSubstr("a.jsonl:5"))));
}

TEST_F(DatasetTest, PromptsThatAreAllAlikeGetAWarning) {
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += Line(absl::StrCat("please work out the following sum as fast as you can: ", i), "1");
  }
  data_.files = {Write("a.jsonl", text)};
  data_.eval_files = {Write("e.jsonl", Line("hello there", "1"))};
  data_.near_duplicates = 0.5;
  ASSERT_OK_AND_ASSIGN(const Dataset data, LoadDataset(data_));
  EXPECT_THAT(data.notes, Contains(HasSubstr("raise data.near_duplicates")));
}

TEST_F(DatasetTest, WrongInputIsNamed) {
  ExpectRefused("no files");
  data_.files = {Write("empty.jsonl", "")};
  ExpectRefused("empty.jsonl: no rows");
  data_.files = {Write("a.jsonl", Lines("q", 30))};
  data_.question = "prompt";
  ExpectRefused("a.jsonl:1: no column \"prompt\"; there are: answer, question");
  data_.question = "question";
  data_.prompt = "{question} {hint}";
  ExpectRefused("a.jsonl:1: no column \"hint\"");
  data_.prompt = "{question} {answer}";
  ExpectRefused("which is the answer");
  data_.prompt = "question";
  ExpectRefused("no {column} in it");
  data_.prompt = "{question}";
  data_.verifier = "judge";
  ExpectRefused("no verifier \"judge\"");
  data_.verifier = "numeric";
  data_.files = {Write("b.jsonl", Lines("q", 3) + Line("x", "none"))};
  ExpectRefused("b.jsonl:4: the answer has no number");
  data_.files = {Write("c.jsonl", Lines("q", 3) + Line(" ", "3"))};
  ExpectRefused("c.jsonl:4: the prompt is empty");
  data_.files = {Write("d.jsonl", Lines("q", 3) + Line("q 7?", "8"))};
  data_.demonstration = "question";
  ExpectRefused("d.jsonl:4: the verifier numeric refuses the demonstration");
  data_.demonstration = "";
  data_.files = {"x.jsonl:0"};
  ExpectRefused("weight 0 is not above 0");
  data_.files = {Write("e.jsonl", Line("q", "1"))};
  data_.eval_fraction = 1e-6;
  ExpectRefused("(1 rows) is held out; raise data.eval_fraction");
  data_.files = {Write("f.jsonl", Lines("q", 30)), Write("g.jsonl", Lines("q", 10))};
  ExpectRefused("g.jsonl: no problem is left to train on (10 duplicates");
  data_.files = {JoinPath(dir_, "none.jsonl")};
  EXPECT_THAT(LoadDataset(data_), StatusIs(absl::StatusCode::kNotFound, HasSubstr("none.jsonl")));
}

std::unique_ptr<Task> MakeDataset(const RunConfig::Data& data, uint64_t seed = 1) {
  TaskOptions options;
  options.name = "dataset";
  options.seed = seed;
  options.data = data;
  return MakeTask(options).value();
}

std::string Asked(const Problem& problem) { return problem.messages.back().content; }

TEST_F(DatasetTest, EveryEpochHasEveryProblemOnceInAnotherOrder) {
  data_.files = {Write("a.jsonl", Lines("q", 97))};
  const auto task = MakeDataset(data_), again = MakeDataset(data_), other = MakeDataset(data_, 2);
  const uint64_t size = task->Size(Split::kTrain);
  EXPECT_EQ(size + task->Size(Split::kEval), 97u);
  std::set<std::vector<std::string>> orders;
  int differ = 0;
  for (uint64_t epoch = 0; epoch < 6; ++epoch) {
    std::vector<std::string> order;
    for (uint64_t i = 0; i < size; ++i) {
      const uint64_t id = epoch * size + i;
      order.push_back(Asked(task->Make(Split::kTrain, id)));
      EXPECT_EQ(order.back(), Asked(again->Make(Split::kTrain, id)));
      differ += order.back() != Asked(other->Make(Split::kTrain, id));
    }
    EXPECT_EQ(std::set<std::string>(order.begin(), order.end()).size(), size) << epoch;
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 6u);
  EXPECT_GT(differ, static_cast<int>(size) * 5);
  std::set<std::string> eval;
  for (uint64_t id = 0; id < task->Size(Split::kEval); ++id) {
    eval.insert(Asked(task->Make(Split::kEval, id)));
  }
  EXPECT_EQ(eval.size(), task->Size(Split::kEval));
  EXPECT_EQ(task->Digest(), again->Digest());
}

TEST_F(DatasetTest, SourcesComeInProportionToTheirWeights) {
  data_.files = {Write("a.jsonl", Lines("one", 200)) + ":3", Write("b.csv", "question,answer\n")};
  std::string csv = "question,answer\n";
  for (int i = 0; i < 50; ++i) absl::StrAppend(&csv, "two ", i, ",", i, "\n");
  Write("b.csv", csv);
  const auto task = MakeDataset(data_);
  int one = 0;
  for (uint64_t id = 0; id < 400; ++id) {
    const Problem problem = task->Make(Split::kTrain, id);
    const bool first = absl::StartsWith(Asked(problem), "one");
    EXPECT_TRUE(absl::EndsWith(problem.source, first ? "a.jsonl" : "b.csv")) << problem.source;
    one += first ? 1 : 0;
  }
  EXPECT_EQ(one, 300);
}

TEST_F(DatasetTest, APromptHasItsSystemMessageTemplateAndDemonstration) {
  data_.files = {
      Write("a.csv", "text,label,worked\nhello,#### 3,<<1+2=3>>so #### 3\nx,4,4\ny,5,5\n")};
  data_.eval_files = {Write("e.csv", "text,label,worked\nbye,4,#### 4\n")};
  data_.question = "text";
  data_.answer = "label";
  data_.demonstration = "worked";
  data_.system = "Be brief.";
  data_.prompt = "Q: {question}\nA:";
  data_.verifier = "numeric";
  const Problem problem = MakeDataset(data_)->Make(Split::kEval, 0);
  ASSERT_EQ(problem.messages.size(), 2u);
  EXPECT_EQ(problem.messages[0].role, "system");
  EXPECT_EQ(problem.messages[0].content, "Be brief.");
  EXPECT_EQ(problem.messages[1].content, "Q: bye\nA:");
  std::set<std::string> demonstrations;
  const auto task = MakeDataset(data_);
  for (uint64_t id = 0; id < 3; ++id) {
    demonstrations.insert(task->Make(Split::kTrain, id).demonstration);
  }
  EXPECT_THAT(demonstrations, ElementsAre("4", "5", "so #### 3"));
  data_.chat = false;
  EXPECT_EQ(MakeDataset(data_)->Make(Split::kEval, 0).text, "Be brief.\nQ: bye\nA:");
}

TEST_F(DatasetTest, AFileWithADataSectionIsATaskAndAPartOfAMixture) {
  Write("a.jsonl", Lines("q", 40));
  const std::string toml =
      Write("mine.toml", "[data]\nfiles = [\"a.jsonl\"]\nnear_duplicates = 0\n");
  TaskOptions options;
  options.name = toml;
  ASSERT_OK_AND_ASSIGN(const auto task, MakeTask(options));
  EXPECT_EQ(task->name(), toml);
  options.name = "mixture";
  options.parts = {"dates", toml + ":2"};
  ASSERT_OK_AND_ASSIGN(const auto mixture, MakeTask(options));
  int mine = 0;
  for (uint64_t id = 0; id < 30; ++id) {
    const Problem problem = mixture->Make(Split::kTrain, id);
    mine += problem.source == toml;
    EXPECT_TRUE(mixture->Verify(problem, problem.demonstration).correct);
  }
  EXPECT_EQ(mine, 20);
  EXPECT_EQ(mixture->Digest(), task->Digest());
  EXPECT_THAT(mixture->Notes(), Contains(HasSubstr("mine.toml: ")));
}

TEST_F(DatasetTest, TheConfigsDataGoesOnTopOfThatOfAFile) {
  Write("a.jsonl", Lines("q", 40));
  TaskOptions options;
  options.name = Write(
      "mine.toml", "[data]\nfiles = [\"a.jsonl\"]\nnear_duplicates = 0\nverifier = \"numeric\"\n");
  ASSERT_OK_AND_ASSIGN(const auto plain, MakeTask(options));
  options.data.prompt = "Say: {question}";
  options.data.eval_fraction = 0.5;
  ASSERT_OK_AND_ASSIGN(const auto changed, MakeTask(options));
  EXPECT_GT(changed->Size(Split::kEval), 2 * plain->Size(Split::kEval));
  EXPECT_NE(changed->Digest(), plain->Digest());
  const Problem problem = changed->Make(Split::kEval, 0);
  EXPECT_THAT(Asked(problem), ::testing::StartsWith("Say: q "));
  // What was not given is as in the file.
  EXPECT_TRUE(changed->Verify(problem, "it is " + problem.reference).correct);
  options.data.files = {Write("b.jsonl", Lines("other", 40))};
  ASSERT_OK_AND_ASSIGN(const auto elsewhere, MakeTask(options));
  EXPECT_THAT(Asked(elsewhere->Make(Split::kTrain, 0)), ::testing::StartsWith("Say: other "));
  // A config that is written down does not tell a default that was given from one that was not.
  options.data.overridden = {"prompt", "verifier"};
  EXPECT_THAT(
      MakeTask(options),
      StatusIs(kInvalid, AllOf(HasSubstr("data.verifier: --set gives its default \"exact\""),
                               HasSubstr("\"numeric\" of "), HasSubstr("mine.toml"))));
}

TEST_F(DatasetTest, DataThatATaskWouldNotReadIsRefusedByName) {
  TaskOptions options;
  options.name = "sums";
  options.data.verifier = "json";
  EXPECT_OK(MakeTask(options));  // of a config whose task is changed for a try
  options.data.overridden = {"verifier"};
  EXPECT_THAT(MakeTask(options), StatusIs(kInvalid, HasSubstr("data.verifier is set, but task sums "
                                                              "does not read it")));
  options.data = data_;
  options.data.files = {Write("a.jsonl", Lines("q", 40))};
  EXPECT_THAT(MakeTask(options), StatusIs(kInvalid, HasSubstr("data.files is set, but task sums")));
  options.name = "mixture";
  options.parts = {"sums", "dates:2"};
  EXPECT_THAT(MakeTask(options), StatusIs(kInvalid, HasSubstr("mixture has no part \"dataset\"")));
  options.parts.push_back("dataset:3");
  EXPECT_OK(MakeTask(options));
  options.name = "chess";
  EXPECT_THAT(MakeTask(options), StatusIs(absl::StatusCode::kNotFound, HasSubstr("chess")));
}

TEST_F(DatasetTest, APartOfAMixtureIsAsItsFileSays) {
  Write("a.jsonl", Lines("q", 40));
  const std::string file =
      Write("mine.toml", "[data]\nfiles = [\"a.jsonl\"]\nnear_duplicates = 0\n");
  TaskOptions options;
  options.data = data_;
  options.data.files = {Write("b.jsonl", Lines("other", 40))};
  options.data.prompt = "Say: {question}";
  options.data.overridden = {"prompt"};
  options.name = "mixture";
  options.parts = {file, "dataset"};
  ASSERT_OK_AND_ASSIGN(const auto mixture, MakeTask(options));
  int of_file = 0;
  for (uint64_t id = 0; id < 20; ++id) {
    const Problem problem = mixture->Make(Split::kTrain, id);
    const bool from_file = absl::StartsWith(Asked(problem), "q ");
    EXPECT_TRUE(from_file || absl::StartsWith(Asked(problem), "Say: other ")) << Asked(problem);
    of_file += from_file ? 1 : 0;
  }
  EXPECT_EQ(of_file, 10);
}

TEST_F(DatasetTest, TheConfigOfARunIsNoDataset) {
  TaskOptions options;
  options.name = Write("run.toml", "[task]\nname = \"dates\"\n");
  EXPECT_THAT(
      MakeTask(options),
      StatusIs(kInvalid, AllOf(HasSubstr("run.toml sets no data.files, so it is no dataset"),
                               HasSubstr("name its task instead: dates"))));
}

TEST(Gsm8k, IsShippedWholeWithDemonstrationsThatAreRight) {
  ASSERT_OK_AND_ASSIGN(const auto task, MakeTask({.name = "gsm8k"}));
  EXPECT_EQ(task->name(), "gsm8k");
  EXPECT_EQ(task->Size(Split::kEval), 1319u);
  EXPECT_GT(task->Size(Split::kTrain), 7400u);
  EXPECT_LE(task->Size(Split::kTrain), 7473u);
  std::set<std::string> held_out;
  for (uint64_t id = 0; id < 1319; ++id) held_out.insert(Asked(task->Make(Split::kEval, id)));
  EXPECT_EQ(held_out.size(), 1319u);
  for (uint64_t id = 0; id < task->Size(Split::kTrain); ++id) {
    const Problem problem = task->Make(Split::kTrain, id);
    ASSERT_FALSE(held_out.contains(Asked(problem)));
    ASSERT_TRUE(task->Verify(problem, problem.demonstration).correct) << problem.demonstration;
    ASSERT_FALSE(absl::StrContains(problem.demonstration, "<<")) << problem.demonstration;
    ASSERT_FALSE(task->Verify(problem, problem.reference + "1").correct) << problem.reference;
  }
}

TEST(Gsm8k, HasItsWordsFromTheConfigWhereThatHasSome) {
  TaskOptions options;
  options.name = "gsm8k";
  options.data.prompt = "{question} /no_think";
  options.data.overridden = {"prompt"};
  ASSERT_OK_AND_ASSIGN(const auto task, MakeTask(options));
  EXPECT_EQ(task->Size(Split::kEval), 1319u);
  EXPECT_TRUE(absl::EndsWith(Asked(task->Make(Split::kTrain, 0)), " /no_think"));
}

TEST(Gsm8k, SaysWhereItLooked) {
  EXPECT_THAT(FindShippedDataset("no-such"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("no-such/dataset.toml"), HasSubstr("MILLRACE_DATA"))));
}

}  // namespace
}  // namespace millrace
