// The real `millrace` program in a folder with a very small model of random weights, "m".
#ifndef MILLRACE_TESTS_CLI_MODEL_COMMANDS_FIXTURE_H_
#define MILLRACE_TESTS_CLI_MODEL_COMMANDS_FIXTURE_H_

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "model/tokenizer.h"
#include "model/transformer.h"
#include "tests/cli/temp_dir_test.h"

namespace millrace {

class ModelCommandsTest : public TempDirTest {
 protected:
  struct Result {
    int code = -1;
    std::string out, err;
    std::vector<nlohmann::json> lines;  // of out
  };

  void SetUp() override {
    TempDirTest::SetUp();
    ModelConfig config;
    config.model_type = "qwen3";
    config.vocab_size = 259;
    config.hidden_size = 32;
    config.intermediate_size = 48;
    config.layers = 2;
    config.heads = 4;
    config.kv_heads = 2;
    config.head_dim = 8;
    config.max_position = 512;
    config.tie_word_embeddings = true;
    config.qk_norm = true;
    auto model = Transformer::Create(config, /*seed=*/5, at::Device("cpu"));
    ASSERT_TRUE(model.ok()) << model.status();
    ASSERT_OK(MakeDirectories(Path("m")));
    ASSERT_OK((*model)->Save(Path("m")));
    ASSERT_OK(Tokenizer::Bytes()->Save(Path("m")));
  }

  // `shell` is run in the test's folder, with $M for the program.
  Result Shell(const std::string& shell) {
    Result result;
    const std::string command = absl::StrCat("cd ", dir_, " && M=", MILLRACE_BIN_DIR,
                                             "/millrace && (", shell, ") 2>err </dev/null");
    result.code = RunShell(command, &result.out);
    result.err = Read("err");
    for (absl::string_view line : absl::StrSplit(result.out, '\n', absl::SkipEmpty())) {
      result.lines.push_back(nlohmann::json::parse(line, nullptr, false));
    }
    return result;
  }
  Result Succeed(const std::string& shell) {
    const Result result = Shell(shell);
    EXPECT_EQ(result.code, 0) << shell << "\n" << result.err;
    return result;
  }
  void ExpectFailure(const std::string& shell, int code, const std::string& text) {
    const Result result = Shell(shell);
    EXPECT_EQ(result.code, code) << shell << "\n" << result.out;
    EXPECT_THAT(result.err, ::testing::HasSubstr(text)) << shell;
  }
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_CLI_MODEL_COMMANDS_FIXTURE_H_
