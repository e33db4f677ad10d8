#include "cli/time_bar.h"

#include <algorithm>

#include "cli/progress.h"

namespace millrace {

TimeBar::TimeBar(const BarOptions& options) : options_(options), start_(options.clock->Now()) {}

TimeBar::~TimeBar() { Clear(); }

void TimeBar::Update(int64_t done, int64_t total) {
  if (!options_.terminal) return;
  if (done >= total) return Clear();
  if (done == 0) {
    start_ = options_.clock->Now();
    return;
  }
  const double seconds = absl::ToDoubleSeconds(options_.clock->Now() - start_);
  const double fraction = static_cast<double>(done) / static_cast<double>(total);
  std::fprintf(options_.out, "\r\x1b[K%s %lld/%lld samples, %.1f/s, %s left",
               FormatBar(fraction, 20).c_str(), static_cast<long long>(done),
               static_cast<long long>(total), static_cast<double>(done) / std::max(seconds, 1e-3),
               FormatSeconds(seconds * (1 - fraction) / fraction).c_str());
  std::fflush(options_.out);
  shown_ = true;
}

void TimeBar::Clear() {
  if (!shown_) return;
  std::fprintf(options_.out, "\r\x1b[K");
  std::fflush(options_.out);
  shown_ = false;
}

}  // namespace millrace
