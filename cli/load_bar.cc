#include "cli/load_bar.h"

#include <algorithm>
#include <utility>

#include "cli/progress.h"

namespace millrace {
namespace {

constexpr absl::Duration kRedraw = absl::Milliseconds(100), kLines = absl::Seconds(5);

}  // namespace

LoadBar::LoadBar(std::string what, const BarOptions& options)
    : what_(std::move(what)),
      options_(options),
      pace_(options.terminal ? kRedraw : kLines, options.clock) {}

LoadBar::~LoadBar() { Clear(); }

void LoadBar::Update(double fraction) {
  if (fraction >= 1) return Clear();
  if (!pace_.Due()) return;
  if (!options_.terminal) {
    std::fprintf(options_.out, "%s: %.0f %%\n", what_.c_str(), 100 * fraction);
    std::fflush(options_.out);
    return;
  }
  const double seconds = absl::ToDoubleSeconds(pace_.elapsed());
  const double left = seconds * (1 - fraction) / std::max(fraction, 1e-3);
  std::fprintf(options_.out, "\r\x1b[K%s %s %.0f %%, %s left", what_.c_str(),
               FormatBar(fraction, 20).c_str(), 100 * fraction, FormatSeconds(left).c_str());
  std::fflush(options_.out);
  shown_ = true;
}

void LoadBar::Clear() {
  if (!shown_) return;
  std::fprintf(options_.out, "\r\x1b[K");
  std::fflush(options_.out);
  shown_ = false;
}

}  // namespace millrace
