// How far the reading of a model is, on stderr: nothing in the first second; then a bar with the
// time left on a terminal, and elsewhere a line every five seconds. Not thread-safe.
#ifndef MILLRACE_CLI_LOAD_BAR_H_
#define MILLRACE_CLI_LOAD_BAR_H_

#include <functional>
#include <string>

#include "cli/bar_line.h"
#include "model/load_progress.h"

namespace millrace {

class LoadBar {
 public:
  // `what`: "loading models/x".
  explicit LoadBar(std::string what, const BarOptions& options = {});
  void Update(double fraction);
  // Update, for as long as this lives.
  std::function<void(double fraction)> callback() {
    return [this](double fraction) { Update(fraction); };
  }

 private:
  const std::string what_;
  const BarOptions options_;
  ProgressPace pace_;
  BarLine line_;  // leaves no bar behind
};

}  // namespace millrace

#endif  // MILLRACE_CLI_LOAD_BAR_H_
