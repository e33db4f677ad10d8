// One line of a terminal that is drawn over and over, such as a bar. Not thread-safe.
#ifndef MILLRACE_CLI_BAR_LINE_H_
#define MILLRACE_CLI_BAR_LINE_H_

#include <unistd.h>

#include <cstdio>
#include <string>

#include "common/clock.h"

namespace millrace {

// Where a bar is drawn, and by which clock.
struct BarOptions {
  FILE* out = stderr;
  bool terminal = isatty(STDERR_FILENO) != 0;
  Clock* clock = Clock::Real();
};

class BarLine {
 public:
  explicit BarLine(FILE* out) : out_(out) {}
  BarLine(const BarLine&) = delete;
  BarLine& operator=(const BarLine&) = delete;
  ~BarLine() { Clear(); }  // leaves nothing behind

  // In place of what is there.
  void Draw(const std::string& text);
  void Clear();

 private:
  FILE* const out_;
  bool shown_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_CLI_BAR_LINE_H_
