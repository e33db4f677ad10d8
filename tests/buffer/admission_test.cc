#include "buffer/admission.h"

#include <gtest/gtest.h>

#include <random>

namespace millrace {
namespace {

struct WindowCase {
  const char* what;
  AdmissionConfig config;  // groups_per_step, version_lead, oversample, max_oversample
  InFlight in_flight;
  double drop_rate;
  int64_t window;
};

TEST(AdmissionTest, TheWindowFollowsTheTable) {
  const WindowCase cases[] = {
      {"on-policy: one batch", {8, 0, true, 4}, {0, 0, 0}, 0, 8},
      {"on-policy is never widened", {8, 0, true, 4}, {4, 0, 0}, 0.9, 8},
      {"one step off: two batches", {8, 1, true, 4}, {0, 0, 0}, 0, 16},
      {"three steps off", {4, 3, true, 4}, {0, 0, 0}, 0, 16},
      {"half are dropped: twice as many", {8, 1, true, 4}, {0, 0, 0}, 0.5, 32},
      {"over-sampling switched off", {8, 1, false, 4}, {0, 0, 0}, 0.5, 16},
      {"bounded by max_oversample", {8, 1, true, 1}, {0, 0, 0}, 0.9, 24},
      {"all are dropped: still bounded", {8, 1, true, 4}, {0, 0, 0}, 1.0, 48},
      {"what is ready needs no widening", {8, 1, true, 4}, {0, 16, 0}, 0.5, 16},
      {"what is in training needs none either", {8, 1, true, 4}, {4, 4, 8}, 0.5, 20},
      {"more than the window is there after a rewind", {8, 1, true, 4}, {0, 40, 0}, 0.5, 16},
  };
  for (const WindowCase& c : cases) {
    EXPECT_EQ(AdmissionWindow(c.config, c.in_flight, c.drop_rate), c.window) << c.what;
    EXPECT_EQ(MayAdmit(c.config, c.in_flight, c.drop_rate), c.in_flight.total() < c.window)
        << c.what;
  }
}

TEST(AdmissionTest, TheWindowStaysBetweenItsBoundsForAnyInput) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    const auto draw = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    const AdmissionConfig config{draw(1, 64), draw(0, 8), draw(0, 1) == 1,
                                 static_cast<double>(draw(0, 80)) / 10};
    const InFlight in{draw(0, 300), draw(0, 300), draw(0, 300)};
    const double drop_rate = static_cast<double>(draw(0, 100)) / 100;
    const int64_t window = AdmissionWindow(config, in, drop_rate);
    const int64_t base = (config.version_lead + 1) * config.groups_per_step;
    ASSERT_GE(window, base) << "case " << i;
    ASSERT_LE(window, base + config.max_oversample * config.groups_per_step) << "case " << i;
  }
}

TEST(DropRateTest, FollowsTheShareOfDroppedGroups) {
  DropRate rate(0.05);
  EXPECT_EQ(rate.rate(), 0);
  for (int i = 0; i < 400; ++i) rate.Observe(i % 4 == 0);
  EXPECT_NEAR(rate.rate(), 0.25, 0.03);
  for (int i = 0; i < 200; ++i) rate.Observe(true);
  EXPECT_NEAR(rate.rate(), 1, 0.001);
}

}  // namespace
}  // namespace millrace
