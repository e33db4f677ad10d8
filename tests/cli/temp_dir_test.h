// A fixture with a folder of its own that is removed at the end.
#ifndef MILLRACE_TESTS_CLI_TEMP_DIR_TEST_H_
#define MILLRACE_TESTS_CLI_TEMP_DIR_TEST_H_

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

#include "common/files.h"
#include "tests/testing/status_matchers.h"

namespace millrace {

class TempDirTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = JoinPath(::testing::TempDir(), "cli_test_XXXXXX");
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { EXPECT_OK(RemoveRecursively(dir_)); }

  std::string Path(const std::string& name) const { return JoinPath(dir_, name); }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_OK(WriteFileAtomically(Path(name), text));
  }
  // A shell script that can be run.
  void WriteScript(const std::string& name, const std::string& text) {
    Write(name, "#!/bin/sh\n" + text);
    ASSERT_EQ(chmod(Path(name).c_str(), 0755), 0);
  }
  std::string Read(const std::string& name) { return ReadFile(Path(name)).value_or(""); }

  // Runs a shell command; its exit code, -1 when a signal ended it, and what it wrote to stdout.
  static int RunShell(const std::string& command, std::string* out) {
    FILE* pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) return -1;
    char chunk[4096];
    size_t n = 0;
    while ((n = fread(chunk, 1, sizeof(chunk), pipe)) > 0) out->append(chunk, n);
    const int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string dir_;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_CLI_TEMP_DIR_TEST_H_
