#include "cli/machine_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr Machine kLaptop{int64_t{16} << 30, 8};
constexpr int64_t kSmall = 2 * 30 * 3 * 64;  // 23,040 bytes a token at the least

TEST(MachineCheckTest, WhatFitsIsFine) {
  RunConfig config;
  EXPECT_THAT(CheckMachine(config, kSmall, kLaptop), IsEmpty());
  config.rollout.kv_tokens = 700000;
  config.rollout.threads = 64;
  EXPECT_THAT(CheckMachine(config, kSmall, kLaptop), IsEmpty());
  EXPECT_GT(ThisMachine().memory_bytes, 0);
  EXPECT_GE(ThisMachine().cores, 1);
}

TEST(MachineCheckTest, ACacheLargerThanTheMemoryIsNamedWithWhatWouldFit) {
  RunConfig config;
  config.rollout.kv_tokens = 1000000000;
  const auto issues = CheckMachine(config, kSmall, kLaptop);
  ASSERT_THAT(issues, SizeIs(1));
  EXPECT_EQ(issues[0].field, "rollout.kv_tokens");
  EXPECT_THAT(issues[0].message,
              AllOf(HasSubstr("1000000000 tokens of this model take 21457.7 GiB"),
                    HasSubstr("has 16.0 GiB"), HasSubstr("valid: at most 745654")));
}

TEST(MachineCheckTest, TheMemoryOfAGpuIsNotThatOfTheMachine) {
  RunConfig config;
  config.rollout.kv_tokens = 1000000000;
  config.model.device = "cuda";
  EXPECT_THAT(CheckMachine(config, kSmall, kLaptop), IsEmpty());
  config.rollout.devices = {"cuda:0", "cpu"};
  EXPECT_THAT(CheckMachine(config, kSmall, kLaptop), SizeIs(1));
  EXPECT_THAT(CheckMachine(config, kSmall, Machine{0, 8}), IsEmpty()) << "unknown";
}

TEST(MachineCheckTest, ThreadsFarBeyondTheCoresAreNamed) {
  RunConfig config;
  config.rollout.threads = 65;
  config.learner.threads = 1000;
  const auto issues = CheckMachine(config, kSmall, kLaptop);
  ASSERT_THAT(issues, SizeIs(2));
  EXPECT_EQ(issues[0].field, "rollout.threads");
  EXPECT_EQ(issues[1].field, "learner.threads");
  EXPECT_EQ(issues[1].message, "1000 threads on a machine with 8 cores; valid: at most 64");
  EXPECT_THAT(CheckMachine(config, kSmall, Machine{0, 256}), IsEmpty());
}

}  // namespace
}  // namespace millrace
