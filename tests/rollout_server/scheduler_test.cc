#include "rollout_server/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

bool Everyone(uint64_t) { return true; }

std::vector<std::pair<uint64_t, int64_t>> Admitted(Scheduler& scheduler) {
  std::vector<std::pair<uint64_t, int64_t>> out;
  for (const auto& a : scheduler.Admit(Everyone)) out.push_back({a.request, a.samples});
  return out;
}

using P = std::pair<uint64_t, int64_t>;

TEST(SchedulerTest, SamplesFillTheFreeSlotsInOrder) {
  Scheduler scheduler({4, 1000, 16});
  scheduler.Add(1, {10, 10, 3, 0});
  scheduler.Add(2, {10, 10, 3, 0});
  EXPECT_THAT(Admitted(scheduler), ElementsAre(P{1, 3}, P{2, 1}));
  EXPECT_THAT(Admitted(scheduler), IsEmpty());
  scheduler.Finish(1);
  scheduler.Finish(2);
  EXPECT_THAT(Admitted(scheduler), ElementsAre(P{2, 2}));
  EXPECT_EQ(scheduler.running(), 4);
  EXPECT_EQ(scheduler.waiting(), 0);
}

TEST(SchedulerTest, HigherPrioritiesGoFirst) {
  Scheduler scheduler({2, 1000, 16});
  scheduler.Add(1, {10, 10, 4, 0});
  EXPECT_THAT(Admitted(scheduler), ElementsAre(P{1, 2}));
  scheduler.Add(2, {10, 10, 1, 1});
  scheduler.Finish(1);
  scheduler.Finish(1);
  EXPECT_THAT(Admitted(scheduler), ElementsAre(P{2, 1}, P{1, 1}));
}

TEST(SchedulerTest, ARequestThatDoesNotFitIsNotOvertaken) {
  Scheduler scheduler({8, 6, 16});
  scheduler.Add(1, {1, 60, 1, 0});  // 4 blocks
  scheduler.Add(2, {1, 60, 1, 0});
  scheduler.Add(3, {1, 10, 1, 0});  // 1 block
  EXPECT_THAT(Admitted(scheduler), ElementsAre(P{1, 1}));
  EXPECT_THAT(Admitted(scheduler), IsEmpty());
  scheduler.Finish(1);
  EXPECT_THAT(Admitted(scheduler), ElementsAre(P{2, 1}, P{3, 1}));
}

TEST(SchedulerTest, RequestsThatAreNotEligibleArePassedOver) {
  Scheduler scheduler({1, 100, 16});
  scheduler.Add(1, {1, 1, 1, 5});
  scheduler.Add(2, {1, 1, 1, 0});
  const auto admissions = scheduler.Admit([](uint64_t request) { return request == 2; });
  ASSERT_EQ(admissions.size(), 1u);
  EXPECT_EQ(admissions[0].request, 2u);
}

TEST(SchedulerTest, APromptIsCountedOnceForItsSamples) {
  const SampleDemand demand = {33, 15, 4, 0};  // 2 full blocks shared, then 1 each
  EXPECT_EQ(PromptBlocks(demand, 16), 2);
  EXPECT_EQ(OwnBlocks(demand, 16), 1);
  Scheduler scheduler({8, 6, 16});
  scheduler.Add(1, demand);
  EXPECT_THAT(Admitted(scheduler), ElementsAre(P{1, 4}));
  EXPECT_EQ(scheduler.reserved_blocks(), 6);
}

TEST(SchedulerTest, AnyOrderOfEventsEndsWithNothingReservedAndNothingStuck) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto draw = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
    Scheduler scheduler({1 + draw(6), 12, 16});
    std::map<uint64_t, int64_t> running;
    uint64_t next = 1;
    for (int step = 0; step < 300; ++step) {
      const int64_t what = step < 200 ? draw(4) : 2;
      if (what == 0) scheduler.Add(next++, {1 + draw(80), 1 + draw(80), 1 + draw(5), int(draw(2))});
      if (what == 1 && next > 1) scheduler.DropWaiting(1 + draw(next - 1));
      if (what == 2 && !running.empty()) {
        auto entry = running.begin();
        std::advance(entry, draw(running.size()));
        scheduler.Finish(entry->first);
        if (--entry->second == 0) running.erase(entry);
      }
      for (const auto& a : scheduler.Admit(Everyone)) running[a.request] += a.samples;
      ASSERT_LE(scheduler.reserved_blocks(), 12);
      if (scheduler.waiting() > 0) {
        ASSERT_GT(scheduler.running(), 0);
      }
    }
    while (!running.empty()) {
      scheduler.Finish(running.begin()->first);
      if (--running.begin()->second == 0) running.erase(running.begin());
      for (const auto& a : scheduler.Admit(Everyone)) running[a.request] += a.samples;
    }
    EXPECT_EQ(scheduler.waiting(), 0);
    EXPECT_EQ(scheduler.reserved_blocks(), 0);
  }
}

TEST(PlanStepTest, DecodingSequencesAlwaysGoOnAndPromptsShareTheChunk) {
  EXPECT_THAT(PlanStep({1, 300, 1, 400, 50, 1}, 512), ElementsAre(1, 300, 1, 212, 0, 1));
  EXPECT_THAT(PlanStep({1, 2, 1}, 1), ElementsAre(1, 1, 1));
  EXPECT_THAT(PlanStep({}, 1), IsEmpty());
}

}  // namespace
}  // namespace millrace
