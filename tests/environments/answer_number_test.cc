// Numbers in answers: how they are found, read and compared.
#include "environments/answer_number.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "environments/verifier.h"

namespace millrace {
namespace {

TEST(AnswerNumber, AgreesWithTheGoldenCases) {
  const auto golden = nlohmann::json::parse(
      ReadFile(absl::StrCat(MILLRACE_GOLDEN_DIR, "/gsm8k/cases.json")).value());
  ASSERT_EQ(golden["cases"].size(), 70u);
  for (const auto& item : golden["cases"]) {
    const std::string completion = item["completion"];
    const AnswerText found = FindAnswerText(completion);
    EXPECT_EQ(found.method, item["method"].get<std::string>()) << completion;
    EXPECT_EQ(found.text, item["extracted"].get<std::string>()) << completion;
    const auto value = AnswerNumber(completion);
    ASSERT_EQ(value.has_value(), !item["value"].is_null()) << completion;
    if (value.has_value()) {
      EXPECT_EQ(*value, *ParseNumber(item["value"].get<std::string>())) << completion;
    }
    const auto numeric = MakeVerifier("numeric", "").value();
    EXPECT_EQ(numeric->IsRight(item["gold"], completion), item["reward"] == 1.0) << completion;
  }
}

TEST(AnswerNumber, ComparesExactly) {
  const std::pair<const char*, const char*> same[] = {
      {"1/2", "0.50"}, {"-0", "0"}, {"\\frac{2}{6}", "1/3"}, {"1,000", "1000.0"}, {"-3/6", "-.5"}};
  for (const auto& [a, b] : same) EXPECT_EQ(*ParseNumber(a), *ParseNumber(b)) << a << " " << b;
  EXPECT_FALSE(*ParseNumber("1/3") == *ParseNumber("0.3333333333333333"));
  EXPECT_FALSE(*ParseNumber("2") == *ParseNumber("-2"));
  for (const char* none : {"", ".", "1/0", "x", "1 2", "1e3"}) {
    EXPECT_FALSE(ParseNumber(none).has_value()) << none;
  }
  EXPECT_FALSE(ParseNumber(std::string(100000, '7')).has_value());
}

}  // namespace
}  // namespace millrace
