#include "cli/time_bar.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "cli/progress.h"

namespace millrace {

TimeBar::TimeBar(const BarOptions& options)
    : options_(options), start_(options.clock->Now()), line_(options.out) {}

void TimeBar::Update(int64_t done, int64_t total) {
  if (!options_.terminal) return;
  if (done >= total) return line_.Clear();
  if (done == 0) {
    start_ = options_.clock->Now();
    return;
  }
  const double seconds = absl::ToDoubleSeconds(options_.clock->Now() - start_);
  const double fraction = static_cast<double>(done) / static_cast<double>(total);
  line_.Draw(absl::StrFormat("%s %d/%d samples, %.1f/s, %s left", FormatBar(fraction, 20), done,
                             total, static_cast<double>(done) / std::max(seconds, 1e-3),
                             FormatSeconds(seconds * (1 - fraction) / fraction)));
}

}  // namespace millrace
