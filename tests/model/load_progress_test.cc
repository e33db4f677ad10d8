#include "model/load_progress.h"

#include <gtest/gtest.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/testing/fake_clock.h"

namespace millrace {
namespace {

// What is logged of a job that is a quarter further at each of these times.
std::string LogOf(const std::vector<absl::Duration>& quarters) {
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  auto logger = std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log));
  logger->set_pattern("%v");
  spdlog::set_default_logger(logger);
  testing::FakeClock clock;
  const auto progress = LoggedProgress("loading m", &clock);
  absl::Duration now;
  double fraction = 0;
  for (const absl::Duration at : quarters) {
    clock.Advance(at - now);
    now = at;
    progress(fraction += 0.25);
  }
  spdlog::set_default_logger(before);
  return log.str();
}

TEST(LoadProgress, AShortJobIsNotLogged) {
  const absl::Duration s = absl::Seconds(1);
  EXPECT_EQ(LogOf({0.2 * s, 0.4 * s, 0.9 * s, 0.99 * s}), "");
  EXPECT_EQ(LogOf({0.2 * s, 0.4 * s, 0.9 * s, 1.5 * s}), "");  // over before a line came
}

TEST(LoadProgress, ALongOneIsEveryFiveSecondsAndAtItsEnd) {
  const absl::Duration s = absl::Seconds(1);
  EXPECT_EQ(LogOf({0.5 * s, 1.5 * s, 4 * s, 5 * s}),
            "loading m: 50 %\nloading m: done after 5.0 s\n");
  EXPECT_EQ(LogOf({2 * s, 6 * s, 7 * s, 8 * s}),
            "loading m: 25 %\nloading m: 75 %\nloading m: done after 8.0 s\n");
}

}  // namespace
}  // namespace millrace
