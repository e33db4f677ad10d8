#include "cli/load_bar.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "cli/progress.h"

namespace millrace {
namespace {

constexpr absl::Duration kRedraw = absl::Milliseconds(100), kLines = absl::Seconds(5);

}  // namespace

LoadBar::LoadBar(std::string what, const BarOptions& options)
    : what_(std::move(what)),
      options_(options),
      pace_(options.terminal ? kRedraw : kLines, options.clock),
      line_(options.out) {}

void LoadBar::Update(double fraction) {
  if (fraction >= 1) return line_.Clear();
  if (!pace_.Due()) return;
  if (!options_.terminal) {
    std::fprintf(options_.out, "%s: %.0f %%\n", what_.c_str(), 100 * fraction);
    std::fflush(options_.out);
    return;
  }
  const double seconds = absl::ToDoubleSeconds(pace_.elapsed());
  const double left = seconds * (1 - fraction) / std::max(fraction, 1e-3);
  line_.Draw(absl::StrFormat("%s %s %.0f %%, %s left", what_, FormatBar(fraction, 20),
                             100 * fraction, FormatSeconds(left)));
}

}  // namespace millrace
