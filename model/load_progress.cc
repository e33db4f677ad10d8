#include "model/load_progress.h"

#include <memory>

#include "spdlog/spdlog.h"

namespace millrace {
namespace {

constexpr absl::Duration kSilence = absl::Seconds(1);
constexpr absl::Duration kLogInterval = absl::Seconds(5);

}  // namespace

ProgressPace::ProgressPace(absl::Duration interval, Clock* clock)
    : interval_(interval), clock_(clock), start_(clock->Now()), next_(start_ + kSilence) {}

bool ProgressPace::Due() {
  const absl::Time now = clock_->Now();
  if (now < next_) return false;
  next_ = now + interval_;
  spoke_ = true;
  return true;
}

std::function<void(double fraction)> LoggedProgress(const std::string& what, Clock* clock) {
  auto pace = std::make_shared<ProgressPace>(kLogInterval, clock);
  return [what, pace](double fraction) {
    if (fraction >= 1) {
      if (pace->spoke()) {
        spdlog::info("{}: done after {:.1f} s", what, absl::ToDoubleSeconds(pace->elapsed()));
      }
    } else if (pace->Due()) {
      spdlog::info("{}: {:.0f} %", what, 100 * fraction);
    }
  };
}

}  // namespace millrace
