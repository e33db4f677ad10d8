// How far an evaluation is, on stderr: on a terminal a bar with the pace and the time left,
// elsewhere nothing. Not thread-safe.
#ifndef MILLRACE_CLI_TIME_BAR_H_
#define MILLRACE_CLI_TIME_BAR_H_

#include <cstdint>

#include "absl/time/time.h"
#include "cli/bar_line.h"

namespace millrace {

class TimeBar {
 public:
  explicit TimeBar(const BarOptions& options = {});

  // `done` of `total` samples. With done = 0 the work begins: what was before doesn't count in the
  // pace. With done = total the bar goes away.
  void Update(int64_t done, int64_t total);

 private:
  const BarOptions options_;
  absl::Time start_;
  BarLine line_;  // leaves no bar behind
};

}  // namespace millrace

#endif  // MILLRACE_CLI_TIME_BAR_H_
