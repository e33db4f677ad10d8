#include "cli/memory_fit.h"

#include <gtest/gtest.h>

#include <string>

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

Json RowOf(const Json& rows, const std::string& memory) {
  for (const Json& row : rows) {
    if (row["memory"] == memory) return row;
  }
  ADD_FAILURE() << "no row for " << memory << " in " << rows.dump();
  return Json::object();
}

TEST(MemoryFit, ALearnerMayFitWhereARolloutServerBesideItDoesNot) {
  // Qwen2.5-1.5B: tied, 28 layers with two K/V heads of 128.
  constexpr int64_t kParameters = 1543714304, kEmbedding = int64_t{151936} * 1536;
  ModelSummary summary;
  summary.train_bytes = 16 * kParameters;
  summary.rollout_bytes = 4 * (kParameters + kEmbedding);
  summary.kv_bytes_per_token = 4 * 2 * 28 * 2 * 128;
  const Json rows = MemoryFit(summary);
  const Json small = RowOf(rows, "24 GiB");
  EXPECT_EQ(small["trains"], false);
  EXPECT_EQ(small["samples"], true);
  EXPECT_EQ(small["trains_and_samples"], false);
  const Json middle = RowOf(rows, "32 GiB");
  EXPECT_EQ(middle["bytes"], int64_t{32} << 30);
  EXPECT_EQ(middle["trains"], true);
  EXPECT_EQ(middle["samples"], true);
  EXPECT_EQ(middle["trains_and_samples"], false);
  EXPECT_GT(middle["kv_tokens"], 300000);
  EXPECT_EQ(RowOf(rows, "80 GiB")["trains_and_samples"], true);
}

TEST(MemoryFit, OnThisMachineTheVersionBetweenTheTwoCounts) {
  const int64_t usable = RowOf(MemoryFit({}), "this machine")["bytes"].get<int64_t>() / 10 * 9;
  ModelSummary summary;
  summary.train_bytes = usable / 10 * 7;
  summary.rollout_bytes = usable / 10;
  EXPECT_EQ(RowOf(MemoryFit(summary), "this machine")["trains_and_samples"], true);
  summary.rollout_bytes = usable / 10 * 2;  // a quarter of the learner's is what is left over
  EXPECT_EQ(RowOf(MemoryFit(summary), "this machine")["trains_and_samples"], false);
}

TEST(MemoryFit, AModelThatDoesNotFitHasRoomForNoToken) {
  ModelSummary summary;
  summary.train_bytes = int64_t{1} << 40;
  summary.rollout_bytes = int64_t{1} << 38;
  summary.kv_bytes_per_token = 1;
  for (const Json& row : MemoryFit(summary)) {
    if (row["memory"] == "this machine") continue;
    EXPECT_EQ(row["trains"], false);
    EXPECT_EQ(row["samples"], false);
    EXPECT_EQ(row["trains_and_samples"], false);
    EXPECT_EQ(row["kv_tokens"], 0);
  }
}

}  // namespace
}  // namespace millrace
