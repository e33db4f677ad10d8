#include "common/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::UnorderedElementsAre;

TEST(MetricsTest, EveryTypeIsSerialisedWithConstantAndOwnLabels) {
  Metrics metrics({{"role", "buffer"}});
  metrics.AddCounter("millrace_x_total", "X.", {{"result", "ok"}}).Increment(3);
  metrics.AddGauge("millrace_depth_groups", "Depth.").Set(7);
  metrics.AddHistogram("millrace_lag_seconds", "Lag.", {0.5, 1}).Observe(0.7);
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("# TYPE millrace_x_total counter"));
  EXPECT_THAT(text, HasSubstr("# HELP millrace_x_total X."));
  EXPECT_THAT(text, HasSubstr("millrace_x_total{role=\"buffer\",result=\"ok\"} 3"));
  EXPECT_THAT(text, HasSubstr("millrace_depth_groups{role=\"buffer\"} 7"));
  EXPECT_THAT(text, HasSubstr("millrace_lag_seconds_bucket{role=\"buffer\",le=\"0.5\"} 0"));
  EXPECT_THAT(text, HasSubstr("millrace_lag_seconds_bucket{role=\"buffer\",le=\"1\"} 1"));
  EXPECT_THAT(text, HasSubstr("millrace_lag_seconds_bucket{role=\"buffer\",le=\"+Inf\"} 1"));
}

TEST(MetricsTest, TheSameNameAndLabelsAreTheSameObject) {
  Metrics metrics;
  Counter& a = metrics.AddCounter("n_total", "N.", {{"k", "1"}});
  EXPECT_EQ(&a, &metrics.AddCounter("n_total", "N.", {{"k", "1"}}));
  EXPECT_NE(&a, &metrics.AddCounter("n_total", "N.", {{"k", "2"}}));
}

TEST(MetricsTest, HooksRunBeforeEverySerialisation) {
  Metrics metrics;
  Gauge& gauge = metrics.AddGauge("g", "G.");
  int calls = 0;
  metrics.AddBeforeSerialize([&] { gauge.Set(++calls); });
  EXPECT_THAT(metrics.Serialize(), HasSubstr("g 1"));
  EXPECT_THAT(metrics.Serialize(), HasSubstr("g 2"));
}

TEST(TimeSplitTest, EveryStateEnteredHasItsSecondsAndASeriesOfItsOwn) {
  Metrics metrics;
  TimeSplit split(&metrics, "learner");
  split.Enter("busy");
  split.Enter("wait_batch");
  split.Enter("busy");
  EXPECT_THAT(split.Seconds(), UnorderedElementsAre(Key("busy"), Key("wait_batch")));
  for (const auto& [state, seconds] : split.Seconds()) EXPECT_GE(seconds, 0) << state;
  // A scrape in the middle of a state shows that state.
  split.Enter("publish");
  EXPECT_THAT(metrics.Serialize(),
              HasSubstr("millrace_learner_time_seconds_total{state=\"publish\"}"));
}

TEST(TimeSplitTest, AScrapeAfterItsEndIsFine) {
  Metrics metrics;
  { TimeSplit(&metrics, "x").Enter("busy"); }
  EXPECT_THAT(metrics.Serialize(), HasSubstr("millrace_x_time_seconds_total"));
}

}  // namespace
}  // namespace millrace
