#include "learner/run_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

using nlohmann::json;

// Calls `take` with the text and the object of every whole line, one at a time: a long run has a
// hundred thousand.
absl::Status ForLines(const std::string& path,
                      const std::function<void(absl::string_view, json)>& take) {
  if (!FileExists(path)) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    json parsed = json::parse(line.begin(), line.end(), nullptr, false);
    // A process that was killed leaves at most one half line.
    if (parsed.is_object()) take(line, std::move(parsed));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunLog::Append(const std::string& file, const json& line) {
  const std::string path = JoinPath(run_dir_, file);
  const std::string text = line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  absl::MutexLock lock(&mu_);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return absl::InternalError(absl::StrCat("open ", path, ": ", std::strerror(errno)));
  // One write, so that readers see whole lines.
  const ssize_t written = write(fd, text.data(), text.size());
  const int error = errno;
  close(fd);
  if (written != static_cast<ssize_t>(text.size())) {
    return absl::InternalError(absl::StrCat("write ", path, ": ", written, " of ", text.size(),
                                            " bytes: ", std::strerror(error)));
  }
  return absl::OkStatus();
}

absl::Status RunLog::Cut(const std::string& file, int64_t step) {
  const std::string path = JoinPath(run_dir_, file);
  if (!FileExists(path)) return absl::OkStatus();
  std::string kept;
  MR_RETURN_IF_ERROR(ForLines(path, [&](absl::string_view text, const json& line) {
    const bool warm_up = line.value("phase", "") == "sft" || line.value("kind", "") == "sft";
    // A final evaluation is made anew by whoever ends the run.
    if (step < 0 || line.value("kind", "") == "after") return;
    if (!warm_up && line.value("step", int64_t{0}) > step) return;
    absl::StrAppend(&kept, text, "\n");
  }));
  return WriteFileAtomically(path, kept);
}

absl::Status RunLog::CutAfter(int64_t step) {
  absl::MutexLock lock(&mu_);
  MR_RETURN_IF_ERROR(Cut("metrics.jsonl", step));
  return Cut("eval.jsonl", step);
}

absl::StatusOr<std::vector<json>> RunLog::EvalLines() const {
  absl::MutexLock lock(&mu_);
  std::vector<json> lines;
  MR_RETURN_IF_ERROR(ForLines(JoinPath(run_dir_, "eval.jsonl"), [&](absl::string_view, json line) {
    lines.push_back(std::move(line));
  }));
  return lines;
}

json ToJson(const EvalOutcome& o) {
  json line = {
      {"step", o.request.step}, {"version", o.version},           {"kind", o.request.kind},
      {"mode", o.request.mode}, {"problems", o.request.problems}, {"samples", o.samples},
      {"correct", o.correct},   {"accuracy", o.accuracy},         {"low", o.low},
      {"high", o.high},         {"tokens_mean", o.tokens_mean},   {"truncated", o.truncated},
      {"seconds", o.seconds}};
  if (o.has_baseline) {
    line["baseline_correct"] = o.baseline_correct;
    line["baseline_accuracy"] = o.baseline_accuracy;
  }
  return line;
}

}  // namespace millrace
