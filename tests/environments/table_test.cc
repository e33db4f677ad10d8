// What datasets are made with: tables, prompt templates, resemblance.
#include "environments/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>
#include <vector>

#include "environments/near_duplicates.h"
#include "environments/prompt_template.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(Table, ReadsJsonLines) {
  ASSERT_OK_AND_ASSIGN(
      const auto rows,
      ParseTable("\xef\xbb\xbf{\"q\": \"a\\u00e4\", \"n\": 3, \"o\": {\"x\": [1, 2]}}\r\n\n"
                 "{\"q\": \"b\", \"n\": null, \"o\": {\"x\": true}, \"o.x\": \"flat\"}",
                 "f.jsonl", {"q", "n", "o.x"}));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_THAT(rows[0].values, ElementsAre("a\u00e4", "3", "[1,2]"));
  EXPECT_THAT(rows[1].values, ElementsAre("b", "null", "flat"));
  EXPECT_EQ(rows[1].line, 3);
}

TEST(Table, ReadsCsvWithQuotesAndLineBreaksInFields) {
  ASSERT_OK_AND_ASSIGN(const auto rows,
                       ParseTable("id,question,answer\r\n1,\"a, \"\"b\"\"\nc\",x\r\n\r\n2,,y",
                                  "f.CSV", {"answer", "question"}));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_THAT(rows[0].values, ElementsAre("x", "a, \"b\"\nc"));
  EXPECT_THAT(rows[1].values, ElementsAre("y", ""));
  EXPECT_EQ(rows[0].line, 2);
  EXPECT_EQ(rows[1].line, 5);
  ASSERT_OK_AND_ASSIGN(const auto tabs, ParseTable("a\tb\n1,5\t2\n", "f.tsv", {"a"}));
  EXPECT_THAT(tabs[0].values, ElementsAre("1,5"));
}

TEST(Table, NamesTheLineThatIsBroken) {
  struct Case {
    const char* name;
    std::string text;
    const char* message;
  };
  const Case cases[] = {
      {"f.jsonl", "{\"q\": 1}\n{\"q\": \n", "f.jsonl:2: not valid JSON at byte"},
      {"f.jsonl", "{\"q\": 1}\n\n[1]\n", "f.jsonl:3: not a JSON object"},
      {"f.jsonl", "{\"q\": 1}\n{\"p\": 1, \"r\": 2}",
       "f.jsonl:2: no column \"q\"; there are: p, r"},
      {"f.jsonl", "{\"q\": 1}\n{\"q\": \"\xff\"}", "f.jsonl:2: not valid UTF-8"},
      {"f.jsonl", "{\"q\": \"\xed\xa0\x80\"}", "f.jsonl:1: not valid UTF-8"},
      {"f.jsonl", "", "f.jsonl: no rows"},
      {"f.jsonl", "\n \n", "f.jsonl: no rows"},
      {"f.csv", "", "f.csv:1: no column \"q\""},
      {"f.csv", "q,a\n", "f.csv: no rows"},
      {"f.csv", "p,a\n1,2\n", "f.csv:1: no column \"q\"; there are: p, a"},
      {"f.csv", "q,a\n1,2\n1,2,3\n", "f.csv:3: 3 fields, but the header has 2"},
      {"f.csv", "q,a\n\"1\n2\",3\n\"4,5\n", "f.csv:4: a quoted field is not closed"},
      {"f.csv", "q,a\n\"1\"2,3\n", "f.csv:2: text after a closing quote in column 1"},
      {"f.parquet", "PAR1", "f.parquet: not .jsonl, .ndjson, .csv or .tsv; docs/datasets.md"},
      {"f", "x", "f: not .jsonl"}};
  for (const Case& c : cases) {
    EXPECT_THAT(ParseTable(c.text, c.name, {"q"}), StatusIs(kInvalid, HasSubstr(c.message)))
        << c.text;
  }
  EXPECT_THAT(ReadTable("no/such.jsonl", {"q"}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no/such.jsonl")));
}

TEST(PromptTemplateTest, FillsPlaceholders) {
  ASSERT_OK_AND_ASSIGN(const PromptTemplate t,
                       PromptTemplate::Parse("{a}: {{\"x\": {b}}} and {a}"));
  EXPECT_THAT(t.names(), ElementsAre("a", "b"));
  EXPECT_EQ(t.Fill({"{b}", "2"}), "{b}: {\"x\": 2} and {b}");
  for (const char* bad : {"", "no column", "{", "}", "{a", "{}", "{a{b}}", "a}b"}) {
    EXPECT_THAT(PromptTemplate::Parse(bad), StatusIs(kInvalid)) << bad;
  }
}

TEST(NearDuplicates, WordsKeepSignsApart) {
  EXPECT_THAT(NormalisedWords("What is 3+4, Tom's  \n na\u00efve?"),
              ElementsAre("what", "is", "3", "+", "4", ",", "tom", "'", "s", "na\u00efve", "?"));
  EXPECT_EQ(Jaccard(Shingles("what is 3 + 4?"), Shingles("What  is 3 + 4 ?")), 1);
  EXPECT_LT(Jaccard(Shingles("what is 3 + 4?"), Shingles("what is 3 - 4?")), 0.3);
  EXPECT_EQ(Jaccard(Shingles(""), Shingles("")), 0);
}

TEST(NearDuplicates, ThePrefixFilterMissesNoPair) {
  std::mt19937_64 random(5);
  std::vector<std::vector<uint64_t>> sets;
  for (int i = 0; i < 400; ++i) {
    std::set<uint64_t> set;
    if (i % 3 != 0 && i > 0) set.insert(sets.back().begin(), sets.back().end());
    for (int k = 0; k < static_cast<int>(random() % 6); ++k) {
      if (!set.empty() && random() % 2 == 0) set.erase(set.begin());
      set.insert(random() % 60);
    }
    sets.emplace_back(set.begin(), set.end());
  }
  for (const double threshold : {0.3, 0.5, 0.8, 0.9, 1.0}) {
    std::vector<std::pair<size_t, size_t>> wanted;
    for (size_t j = 0; j < sets.size(); ++j) {
      for (size_t i = 0; i < j; ++i) {
        if (Jaccard(sets[i], sets[j]) >= threshold) wanted.emplace_back(i, j);
      }
    }
    EXPECT_EQ(NearDuplicatePairs(sets, threshold), wanted) << threshold;
    EXPECT_GT(wanted.size(), 10u) << threshold;
  }
}

}  // namespace
}  // namespace millrace
