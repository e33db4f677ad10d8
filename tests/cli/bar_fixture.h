// A file in place of the terminal and a clock that stands still, for bars.
#ifndef MILLRACE_TESTS_CLI_BAR_FIXTURE_H_
#define MILLRACE_TESTS_CLI_BAR_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "tests/testing/fake_clock.h"

namespace millrace {

class BarTest : public ::testing::Test {
 protected:
  ~BarTest() override { std::fclose(out_); }
  // What has been written so far.
  std::string Written() {
    std::string text(static_cast<size_t>(std::ftell(out_)), '\0');
    std::rewind(out_);
    const size_t n = std::fread(text.data(), 1, text.size(), out_);
    EXPECT_EQ(n, text.size());
    std::fseek(out_, 0, SEEK_END);
    return text;
  }

  FILE* const out_ = std::tmpfile();
  testing::FakeClock clock_;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_CLI_BAR_FIXTURE_H_
