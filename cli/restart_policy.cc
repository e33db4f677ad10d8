#include "cli/restart_policy.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/process.h"

namespace millrace {

std::string DescribeExit(const ChildExit& exit) {
  if (exit.signal != 0) {
    return absl::StrCat("was killed by signal ", exit.signal, " (", strsignal(exit.signal), ")");
  }
  return absl::StrCat("exited with code ", exit.code);
}

RestartPolicy::Options RestartPolicy::FromConfig(const RunConfig::Supervisor& config) {
  Options options;
  options.backoff.initial = absl::Seconds(config.backoff_seconds);
  options.backoff.max = absl::Seconds(config.max_backoff_seconds);
  options.max_restarts = config.max_restarts;
  options.window = absl::Seconds(config.restart_window_seconds);
  return options;
}

RestartPolicy::RestartPolicy(Options options, uint64_t seed)
    : options_(options), backoff_(options.backoff, seed) {}

void RestartPolicy::OnStart(absl::Time now) { started_ = now; }

void RestartPolicy::OnAnnounced() { ever_announced_ = true; }

RestartPolicy::Decision RestartPolicy::OnExit(const ChildExit& exit, absl::Time now) {
  Decision decision;
  if (exit.signal == 0 && exit.code == kExitUsage) {
    decision.reason = "its flags or config are wrong, which a restart does not cure";
    return decision;
  }
  if (exit.signal == 0 && exit.code == kExitGaveUp) {
    decision.reason = "it gave up, and would only wait as long again";
    return decision;
  }
  if (!ever_announced_ && exit.signal == 0 && ++failed_starts_ >= options_.max_failed_starts) {
    decision.reason = absl::StrCat("it never got as far as serving, in ", failed_starts_, " tries");
    return decision;
  }
  // A child that ran for a whole window starts with a clean slate.
  if (now - started_ >= options_.window) backoff_.Reset();
  while (!recent_.empty() && now - recent_.front() >= options_.window) recent_.pop_front();
  if (static_cast<int64_t>(recent_.size()) >= options_.max_restarts) {
    decision.reason =
        absl::StrCat("it was restarted ", recent_.size(), " times within ",
                     absl::FormatDuration(options_.window), " (supervisor.max_restarts)");
    return decision;
  }
  recent_.push_back(now);
  ++restarts_;
  decision.restart = true;
  decision.delay = backoff_.Next();
  return decision;
}

}  // namespace millrace
