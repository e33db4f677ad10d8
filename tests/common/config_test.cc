#include "common/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "common/config_schema.h"
#include "common/files.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kSmall[] = "[rollout]\nmax_prompt_tokens = 64\n";

std::string Join(std::string text) { return kSmall + text; }

TEST(ConfigTest, AnEmptyFieldKeepsItsDefault) {
  ASSERT_OK_AND_ASSIGN(const RunConfig config, ParseConfig(kSmall, "q.toml"));
  EXPECT_EQ(config.rollout.max_prompt_tokens, 64);
  EXPECT_EQ(config.rollout.group_size, 8);
  EXPECT_EQ(config.learner.loss, "dapo");
}

TEST(ConfigTest, EveryTypeIsRead) {
  ASSERT_OK_AND_ASSIGN(const RunConfig config,
                       ParseConfig(Join("[learner]\nlr = 3e-4\nclip_low = 1\nloss = \"grpo\"\n"
                                        "[eval]\ngreedy = false\nproblems = 12\n"),
                                   "q.toml"));
  EXPECT_EQ(config.learner.lr, 3e-4);
  EXPECT_EQ(config.learner.clip_low, 1.0);  // an integer is a number
  EXPECT_EQ(config.learner.loss, "grpo");
  EXPECT_FALSE(config.eval.greedy);
  EXPECT_EQ(config.eval.problems, 12);
}

TEST(ConfigTest, AListIsReadFromTheFileAndFromAnOverrideAndPrinted) {
  const std::string toml = Join("[task]\nparts = [\"dates\", \"sums:2\"]\n");
  ASSERT_OK_AND_ASSIGN(RunConfig config, ParseConfig(toml, "q.toml"));
  EXPECT_THAT(config.task.parts, ::testing::ElementsAre("dates", "sums:2"));
  ASSERT_OK_AND_ASSIGN(const RunConfig printed, ParseConfig(PrintConfig(config), "printed.toml"));
  EXPECT_EQ(printed.task.parts, config.task.parts);
  ASSERT_OK_AND_ASSIGN(config, ParseConfig(toml, "q.toml", {"task.parts=a.toml:0.5,b"}));
  EXPECT_THAT(config.task.parts, ::testing::ElementsAre("a.toml:0.5", "b"));
  ASSERT_OK_AND_ASSIGN(config, ParseConfig(toml, "q.toml", {"task.parts="}));
  EXPECT_TRUE(config.task.parts.empty());
}

TEST(ConfigTest, TheFieldsOfDataThatOverridesGaveAreKnown) {
  ASSERT_OK_AND_ASSIGN(const RunConfig config,
                       ParseConfig(Join("[data]\nprompt = \"p\"\n"), "q.toml",
                                   {"data.verifier=exact", "run.seed=4", "data.files=a.jsonl"}));
  EXPECT_THAT(config.data.overridden, ::testing::ElementsAre("verifier", "files"));
  ASSERT_OK_AND_ASSIGN(const RunConfig printed, ParseConfig(PrintConfig(config), "printed.toml"));
  EXPECT_TRUE(printed.data.overridden.empty());
}

TEST(ConfigTest, OverridesOfEveryTypeWinOverTheFile) {
  ASSERT_OK_AND_ASSIGN(
      const RunConfig config,
      ParseConfig(Join("[run]\nseed = 3\n"), "q.toml",
                  {"run.seed=4", "learner.lr=0.5", "eval.greedy=false", "run.name=a-b",
                   "task.name=\"sums\"", "weight_sync.token=a=b", "run.dir="}));
  EXPECT_EQ(config.run.seed, 4);
  EXPECT_EQ(config.learner.lr, 0.5);
  EXPECT_FALSE(config.eval.greedy);
  EXPECT_EQ(config.run.name, "a-b");
  EXPECT_EQ(config.task.name, "sums");
  EXPECT_EQ(config.weight_sync.token, "a=b");
  EXPECT_EQ(config.run.dir, "");
}

TEST(ConfigTest, PrintedConfigReadsBackToTheSame) {
  ASSERT_OK_AND_ASSIGN(
      RunConfig config,
      ParseConfig(
          Join("[learner]\nlr = 1.2345678901234567e-5\nadam_eps = 1e-300\n"
               "[run]\nseed = 9007199254740992\ndir = \"a \\\"b\\\" \\\\c\\n\\t\\u00e4\"\n"),
          "q.toml"));
  const std::string printed = PrintConfig(config);
  ASSERT_OK_AND_ASSIGN(const RunConfig again, ParseConfig(printed, "printed.toml"));
  for (const ConfigField& field : ConfigSchema()) {
    EXPECT_EQ(ConfigValueText(field, again), ConfigValueText(field, config)) << field.full_name();
  }
  EXPECT_EQ(PrintConfig(again), printed);
  EXPECT_EQ(again.run.dir, "a \"b\" \\c\n\t\u00e4");
  EXPECT_EQ(again.learner.lr, config.learner.lr);
}

TEST(ConfigTest, RolloutServersTakeTheirDevicesInTurn) {
  RunConfig config;
  config.model.device = "cuda:0";
  EXPECT_EQ(RolloutDevice(config, "rollout-3"), "cuda:0");
  config.rollout.devices = {"cuda:1", "cuda:2"};
  EXPECT_EQ(RolloutDevice(config, "rollout-0"), "cuda:1");
  EXPECT_EQ(RolloutDevice(config, "rollout-3"), "cuda:2");
  EXPECT_EQ(RolloutDevice(config, "my-host-rollout-4"), "cuda:1");
  EXPECT_EQ(RolloutDevice(config, "late"), "cuda:1");
}

struct BadCase {
  std::string name;
  std::string toml;
  std::vector<std::string> overrides;
  std::vector<std::string> expected;  // substrings of the message
};

class BadConfigTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadConfigTest, IsRefusedWithAMessageThatSaysWhereAndWhatIsValid) {
  const auto result = ParseConfig(GetParam().toml, "q.toml", GetParam().overrides);
  ASSERT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument));
  for (const std::string& text : GetParam().expected) {
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(text));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadConfigTest,
    ::testing::Values(
        BadCase{"Syntax", Join("[run]\nname = \n"), {}, {"q.toml:4: not valid TOML"}},
        BadCase{"UnknownField",
                Join("[learner]\nlrr = 1e-5\n"),
                {},
                {"q.toml:4: learner.lrr: unknown field; did you mean learner.lr?"}},
        BadCase{"FieldOfAnotherSection",
                Join("[run]\ngroup_size = 4\n"),
                {},
                {"q.toml:4: run.group_size: unknown field; did you mean rollout.group_size?"}},
        BadCase{"NothingLikeIt",
                Join("[eval]\nzzzzzzzzzz = 4\n"),
                {},
                {"q.toml:4: eval.zzzzzzzzzz: unknown field; valid in [eval]: problems, samples"}},
        BadCase{"UnknownSection",
                Join("[leaner]\nlr = 1\n"),
                {},
                {"q.toml:3: leaner: unknown section; did you mean learner?"}},
        BadCase{"FieldOutsideASection",
                "lr = 1\n" + Join(""),
                {},
                {"q.toml:1: lr: field outside a section; did you mean learner.lr?"}},
        BadCase{"SectionThatIsAValue",
                "run = 3\n" + Join(""),
                {},
                {"q.toml:1: run: must be a section; valid: [run] with name, dir"}},
        BadCase{"WrongType",
                Join("[run]\nsteps = \"many\"\n"),
                {},
                {"q.toml:4: run.steps: is of type string; valid: an integer from 0"}},
        BadCase{"TextForAList",
                Join("[task]\nparts = \"sums\"\n"),
                {},
                {"q.toml:4: task.parts: is of type string; valid: strings in brackets"}},
        BadCase{"NumberInAList",
                Join("[task]\nparts = [\"sums\", 3]\n"),
                {},
                {"q.toml:4: task.parts: is of type array; valid: strings in brackets"}},
        BadCase{"FractionForAnInteger",
                Join("[run]\nsteps = 1.5\n"),
                {},
                {"q.toml:4: run.steps: is of type", "valid: an integer from 0"}},
        BadCase{"WrongChoice",
                Join("[learner]\nloss = \"ppo\"\n"),
                {},
                {"q.toml:4: learner.loss: \"ppo\" is not valid; valid: grpo, dapo, dr_grpo, bnpo"}},
        BadCase{"OutOfRange",
                Join("[learner]\nlr = -1.0\n"),
                {},
                {"q.toml:4: learner.lr: -1.0 is not valid; valid: a number from 0 to 10"}},
        BadCase{"NotANumber", Join("[learner]\nlr = nan\n"), {}, {"q.toml:4: learner.lr: nan"}},
        BadCase{"GroupOfOne", "[rollout]\ngroup_size = 1\n", {}, {"q.toml:2: rollout.group_size"}},
        BadCase{"ContradictionNamesTheFileWhenNoLineIsToBlame",
                "[rollout]\nmax_prompt_tokens = 1000\n",
                {},
                {"q.toml: model.max_position: 1024 is less than", "valid: 1048 or more"}},
        BadCase{"TooFewKvTokens",
                Join("kv_tokens = 100\n"),
                {},
                {"q.toml:3: rollout.kv_tokens: 100 cannot hold", "valid: 112 or more"}},
        BadCase{"MoreKvTokensThanAnyMachineHas",
                kSmall,
                {"rollout.kv_tokens=1000000000000"},
                {"rollout.kv_tokens: 1000000000000 is not valid; valid: an integer from 1 to"}},
        BadCase{"MicroBatchWithoutBound",
                kSmall,
                {"learner.token_budget=1000000000"},
                {"learner.token_budget: 1000000000 is not valid; valid: an integer from 1 to"}},
        BadCase{"MoreThreadsThanAnyMachineHas",
                kSmall,
                {"rollout.threads=1000000"},
                {"rollout.threads: 1000000 is not valid; valid: an integer from 1 to 1024"}},
        BadCase{
            "AGroupThatFitsIntoNoMessage",
            kSmall,
            {"rollout.group_size=4096", "rollout.max_new_tokens=4096", "model.max_position=8192"},
            {"--set rollout.group_size=4096: rollout.group_size: 4096 samples of",
             "max_new_tokens 4096 are more than the 8257536 tokens"}},
        BadCase{"HeadsThatDoNotDivide",
                Join("[model]\nheads = 5\n"),
                {},
                {"model.kv_heads: 2 does not divide model.heads 5"}},
        BadCase{"LeadAboveStaleness",
                Join("[buffer]\nversion_lead = 5\n"),
                {},
                {"q.toml:4: buffer.version_lead: 5 is more than buffer.max_staleness 4"}},
        BadCase{"NothingToTrain", Join("[run]\nsteps = 0\n"), {}, {"nothing to train"}},
        BadCase{"Transport",
                Join("[weight_sync]\ntransport = \"nccl\"\n"),
                {},
                {"q.toml:4: weight_sync.transport: \"nccl\" is not valid; valid: auto, tcp"}},
        BadCase{"Device", Join("[model]\ndevice = \"gpu\"\n"), {}, {"valid: cpu, cuda, cuda:N"}},
        BadCase{"RolloutDevice",
                Join("devices = [\"cuda:0\", \"gpu\"]\n"),
                {},
                {"q.toml:3: rollout.devices: \"gpu\" is not valid; valid: cpu, cuda, cuda:N"}},
        BadCase{"Address",
                Join("[buffer]\naddress = \"somewhere\"\n"),
                {},
                {"q.toml:4: buffer.address: address \"somewhere\": no port"}},
        BadCase{"AddressWithoutPort",
                Join("[buffer]\naddress = \"127.0.0.1:0\"\n"),
                {},
                {"q.toml:4: buffer.address: \"127.0.0.1:0\" names no port; valid: a port from 1"}},
        BadCase{"Heartbeat",
                Join("[weight_sync]\nheartbeat_seconds = 16\nmember_timeout_seconds = 30\n"),
                {},
                {"q.toml:4: weight_sync.heartbeat_seconds: 16 is more than half of"}},
        BadCase{"RunName", Join("[run]\nname = \"a/b\"\n"), {}, {"q.toml:4: run.name: \"a/b\""}},
        BadCase{"OverrideOfAnUnknownField",
                kSmall,
                {"learner.lrr=1"},
                {"--set learner.lrr=1: learner.lrr: unknown field; did you mean learner.lr?"}},
        BadCase{"OverrideOutOfRange",
                kSmall,
                {"rollout.group_size=1"},
                {"--set rollout.group_size=1: rollout.group_size: 1 is not valid"}},
        BadCase{"OverrideOfTheWrongType",
                kSmall,
                {"run.steps=ten"},
                {"--set run.steps=ten: run.steps: \"ten\" is not valid; valid: an integer"}},
        BadCase{"OverrideWithoutAValue",
                kSmall,
                {"run.steps"},
                {"--set run.steps: not an override; valid: --set section.field=value"}},
        BadCase{"EverythingAtOnce",
                Join("[learner]\nlrr = 1\nloss = \"x\"\n[nope]\n"),
                {"run.steps=-1"},
                {"q.toml:4: learner.lrr", "q.toml:5: learner.loss", "q.toml:6: nope",
                 "--set run.steps=-1"}}),
    [](const auto& info) { return info.param.name; });

TEST(ConfigTest, AMissingFileIsNamed) {
  EXPECT_THAT(LoadConfig("no/such.toml"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no/such.toml")));
}

TEST(ConfigTest, AModelFolderLeavesTheLengthCheckToTheModel) {
  EXPECT_OK(ParseConfig("[model]\npath = \"models/x\"\n", "q.toml"));
}

TEST(ConfigSchemaTest, EveryFieldIsThereOnceWithHelpAndAValidDefault) {
  std::set<std::string> names;
  for (const ConfigField& field : ConfigSchema()) {
    EXPECT_TRUE(names.insert(field.full_name()).second) << field.full_name();
    EXPECT_FALSE(field.help.empty()) << field.full_name();
    EXPECT_EQ(FindConfigField(field.section, field.name), &field);
  }
  EXPECT_TRUE(CheckConfig(RunConfig()).empty());
}

TEST(ConfigSchemaTest, DocsListEveryField) {
  const std::string docs = ConfigDocsMarkdown();
  for (const ConfigField& field : ConfigSchema()) {
    EXPECT_THAT(docs, HasSubstr("| `" + field.name + "` |"));
    EXPECT_THAT(docs, HasSubstr("## [" + field.section + "]"));
  }
}

TEST(ConfigSchemaTest, TheDocsPageIsUpToDate) {
  // Made by: millrace config docs > docs/config.md
  EXPECT_THAT(ReadFile(JoinPath(MILLRACE_SOURCE_DIR, "docs/config.md")),
              testing::IsOkAndHolds(ConfigDocsMarkdown()));
}

TEST(EditDistanceTest, CountsInsertionsDeletionsAndSubstitutions) {
  EXPECT_EQ(EditDistance("", ""), 0);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
  EXPECT_EQ(EditDistance("abc", "abc"), 0);
}

}  // namespace
}  // namespace millrace
