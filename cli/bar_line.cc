#include "cli/bar_line.h"

namespace millrace {
namespace {

constexpr char kEmptyLine[] = "\r\x1b[K";

}  // namespace

void BarLine::Draw(const std::string& text) {
  std::fprintf(out_, "%s%s", kEmptyLine, text.c_str());
  std::fflush(out_);
  shown_ = true;
}

void BarLine::Clear() {
  if (!shown_) return;
  std::fprintf(out_, "%s", kEmptyLine);
  std::fflush(out_);
  shown_ = false;
}

}  // namespace millrace
