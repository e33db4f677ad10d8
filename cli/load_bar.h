// How far the reading of a model is, on stderr: nothing in the first second; then a bar with the
// time left on a terminal, and elsewhere a line every five seconds. Not thread-safe.
#ifndef MILLRACE_CLI_LOAD_BAR_H_
#define MILLRACE_CLI_LOAD_BAR_H_

#include <unistd.h>

#include <cstdio>
#include <functional>
#include <string>

#include "common/clock.h"
#include "model/load_progress.h"

namespace millrace {

// Where a bar is drawn, and by which clock.
struct BarOptions {
  FILE* out = stderr;
  bool terminal = isatty(STDERR_FILENO) != 0;
  Clock* clock = Clock::Real();
};

class LoadBar {
 public:
  // `what`: "loading models/x".
  explicit LoadBar(std::string what, const BarOptions& options = {});
  LoadBar(const LoadBar&) = delete;
  LoadBar& operator=(const LoadBar&) = delete;
  ~LoadBar();  // leaves no bar behind

  void Update(double fraction);
  // Update, for as long as this lives.
  std::function<void(double fraction)> callback() {
    return [this](double fraction) { Update(fraction); };
  }

 private:
  void Clear();

  const std::string what_;
  const BarOptions options_;
  ProgressPace pace_;
  bool shown_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_CLI_LOAD_BAR_H_
