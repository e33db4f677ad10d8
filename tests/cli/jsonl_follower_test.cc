#include "cli/jsonl_follower.h"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/cli/temp_dir_test.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class JsonlFollowerTest : public TempDirTest {
 protected:
  void Append(const std::string& text) { std::ofstream(Path("f"), std::ios::app) << text; }
  // The "n" of each new line; history is negative.
  std::vector<int> Poll() {
    std::vector<int> result;
    follower().Poll([&](const nlohmann::json& line, bool history) {
      result.push_back((history ? -1 : 1) * line["n"].get<int>());
    });
    return result;
  }
  JsonlFollower& follower() {
    if (!follower_) follower_ = std::make_unique<JsonlFollower>(Path("f"));
    return *follower_;
  }
  std::unique_ptr<JsonlFollower> follower_;
};

TEST_F(JsonlFollowerTest, EachLineComesOnce) {
  EXPECT_THAT(Poll(), IsEmpty());
  Append("{\"n\":1}\n{\"n\":2}\n");
  EXPECT_THAT(Poll(), ElementsAre(1, 2));
  EXPECT_THAT(Poll(), IsEmpty());
  Append("{\"n\":3}\n");
  EXPECT_THAT(Poll(), ElementsAre(3));
}

TEST_F(JsonlFollowerTest, WhatWasThereAtFirstIsHistory) {
  Append("{\"n\":1}\n");
  EXPECT_THAT(Poll(), ElementsAre(-1));
  Append("{\"n\":2}\n");
  EXPECT_THAT(Poll(), ElementsAre(2));
}

TEST_F(JsonlFollowerTest, AHalfLineWaitsForItsEnd) {
  EXPECT_THAT(Poll(), IsEmpty());
  Append("{\"n\":");
  EXPECT_THAT(Poll(), IsEmpty());
  Append("1}\n{\"n\":2");
  EXPECT_THAT(Poll(), ElementsAre(1));
  Append("}\n");
  EXPECT_THAT(Poll(), ElementsAre(2));
}

TEST_F(JsonlFollowerTest, ACutFileIsReadAgainAsHistory) {
  EXPECT_THAT(Poll(), IsEmpty());
  Append("{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n");
  EXPECT_THAT(Poll(), ElementsAre(1, 2, 3));
  Write("f", "{\"n\":1}\n");  // replaced: the learner cut it back to its checkpoint
  EXPECT_THAT(Poll(), ElementsAre(-1));
  Append("{\"n\":2}\n");
  EXPECT_THAT(Poll(), ElementsAre(2));
}

TEST_F(JsonlFollowerTest, LinesThatAreNoObjectsAreLeftOut) {
  EXPECT_THAT(Poll(), IsEmpty());
  Append("garbage\n[1]\n\n{\"n\":1}\n");
  EXPECT_THAT(Poll(), ElementsAre(1));
}

}  // namespace
}  // namespace millrace
