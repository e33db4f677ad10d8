// How answers of a dataset are judged.
#include "environments/verifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(Verifiers, JudgeByName) {
  struct Case {
    const char* verifier;
    const char* pattern;
    const char* answer;
    const char* completion;
    bool right;
  };
  const Case cases[] = {
      {"exact", "", " Paris\n", "Paris ", true},
      {"exact", "", "Paris", "paris", false},
      {"exact", "", "Paris", "Paris.", false},
      {"numeric", "", "x\n#### 1,200", "so 1200.0 in all", true},
      {"numeric", "", "#### 72", "#### 27", false},
      {"json", "", "{\"a\": [1, {\"b\": null}]}", "```json\n{\"a\":[1,{\"b\":null}]}\n```", true},
      {"json", "", "{\"a\": 1}", "{\"a\": 1.0}", false},
      {"json", "", "{\"a\": 1}", "{\"a\": 1, \"a\": 1}", false},
      {"json", "", "[1]", "nope", false},
      {"regex", "Answer: (\\w+)", "b", "Answer: a ... Answer: b", true},
      {"regex", "Answer: (\\w+)", "a", "Answer: a ... Answer: b", false},
      {"regex", "Answer: (\\w+)", "a", "a", false},
      {"regex", "<a>(.*?)</a>|(x)", "1", "<a> 1 </a>", true},
      {"regex", "((a+)+)+$", "a", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", false}};
  for (const Case& c : cases) {
    ASSERT_OK_AND_ASSIGN(const auto verifier, MakeVerifier(c.verifier, c.pattern));
    ASSERT_OK_AND_ASSIGN(const std::string reference, verifier->Reference(c.answer));
    EXPECT_EQ(verifier->IsRight(reference, c.completion), c.right)
        << c.verifier << ": " << c.completion;
    EXPECT_FALSE(verifier->IsRight(reference, "\xff\xfe")) << c.verifier;
    EXPECT_FALSE(verifier->IsRight(reference, "")) << c.verifier;
  }
}

TEST(Verifiers, SayWhatIsWrongWithThem) {
  EXPECT_THAT(MakeVerifier("judge", ""), StatusIs(kInvalid, HasSubstr("exact, numeric, json")));
  EXPECT_THAT(MakeVerifier("regex", "(a"), StatusIs(kInvalid, HasSubstr("byte 2")));
  EXPECT_THAT(MakeVerifier("regex", "abc"), StatusIs(kInvalid, HasSubstr("no (group)")));
  EXPECT_THAT(MakeVerifier("exact", "(a)"), StatusIs(kInvalid, HasSubstr("data.pattern is for")));
  EXPECT_THAT(MakeVerifier("numeric", "").value()->Reference("many"), StatusIs(kInvalid));
  EXPECT_THAT(MakeVerifier("json", "").value()->Reference("{"), StatusIs(kInvalid));
}

}  // namespace
}  // namespace millrace
