// The learner's JSON-lines files in the run directory: metrics.jsonl (one line a step), eval.jsonl.
// Formats: docs/formats.md. Thread-safe.
#ifndef MILLRACE_LEARNER_RUN_LOG_H_
#define MILLRACE_LEARNER_RUN_LOG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "learner/evaluation_client.h"
#include "nlohmann/json.hpp"

namespace millrace {

class RunLog {
 public:
  explicit RunLog(std::string run_dir) : run_dir_(std::move(run_dir)) {}

  // Appends one line; non-finite numbers become null.
  absl::Status Metrics(const nlohmann::json& line) { return Append("metrics.jsonl", line); }
  absl::Status Eval(const nlohmann::json& line) { return Append("eval.jsonl", line); }

  // What a learner that died wrote after its checkpoint of `step` goes: lines of later steps, a
  // half-written last line, a final evaluation, and with step < 0 (no checkpoint) everything.
  absl::Status CutAfter(int64_t step);
  // Whole lines of eval.jsonl.
  absl::StatusOr<std::vector<nlohmann::json>> EvalLines() const;

 private:
  absl::Status Append(const std::string& file, const nlohmann::json& line);
  absl::Status Cut(const std::string& file, int64_t step);

  const std::string run_dir_;
  mutable absl::Mutex mu_;  // of the files
};

nlohmann::json ToJson(const EvalOutcome& outcome);

}  // namespace millrace

#endif  // MILLRACE_LEARNER_RUN_LOG_H_
