// BufferCore's calls of the learner, leases' upkeep, the timer and metrics.
#include <algorithm>
#include <limits>
#include <utility>

#include "buffer/buffer_core.h"
#include "buffer/buffer_instruments.h"
#include "spdlog/spdlog.h"

namespace millrace {
namespace {

constexpr absl::Duration kTimerIdle = absl::Hours(1);

}  // namespace

void BufferCore::Arrive(const std::string& server, uint64_t instance) {
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    const int ended = groups_.Arrive(server, instance, NowMs());
    if (ended > 0) {
      spdlog::info("{} is a new process; the {} leases of the one before are free again", server,
                   ended);
      Progress(&actions);
    }
  }
  for (const auto& action : actions) action();
}

RenewResult BufferCore::Renew(const std::string& server, const std::vector<LeaseName>& leases) {
  absl::MutexLock lock(&mu_);
  const int64_t now_ms = NowMs();
  RenewResult result;
  result.deadline = absl::FromUnixMillis(now_ms + options_.groups.lease_ms);
  for (const LeaseName& lease : leases) {
    if (!groups_.Renew(server, lease.group_id, lease.attempt, now_ms)) result.lost.push_back(lease);
  }
  return result;
}

void BufferCore::Release(const std::string& server, const std::vector<LeaseName>& leases,
                         Done done) {
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    for (const LeaseName& lease : leases) {
      groups_.Release(server, lease.group_id, lease.attempt);
    }
    Persist(std::move(done));
    Progress(&actions);
  }
  for (const auto& action : actions) action();
}

void BufferCore::Commit(uint64_t step, const Reply<uint64_t>& reply) {
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    absl::StatusOr<uint64_t> groups = groups_.Commit(step, NowMs());
    if (!groups.ok()) {
      actions.push_back([reply, groups] { reply(groups); });
    } else {
      Persist(
          [reply, groups](const absl::Status& status) { reply(status.ok() ? groups : status); });
      Progress(&actions);
    }
  }
  for (const auto& action : actions) action();
}

void BufferCore::Rewind(uint64_t step, const Reply<RewindResult>& reply) {
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    // Whoever waits for a batch is the learner's previous life.
    for (BatchWait& wait : batch_waits_) {
      actions.push_back([old = std::move(wait.reply)] {
        old(absl::FailedPreconditionError("the learner restarted: Rewind was called"));
      });
    }
    batch_waits_.clear();
    const absl::StatusOr<uint64_t> returned = groups_.Rewind(step, NowMs());
    if (!returned.ok()) {
      actions.push_back([reply, returned] { reply(returned.status()); });
    } else {
      RewindResult result{*returned, groups_.meta().committed_step, groups_.meta().version};
      Persist([reply, result](const absl::Status& status) {
        if (status.ok()) {
          reply(result);
        } else {
          reply(status);
        }
      });
      Progress(&actions);
    }
  }
  for (const auto& action : actions) action();
}

void BufferCore::SetVersion(int64_t version, bool finished, Done done) {
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    const absl::Status status = groups_.SetVersion(version, finished, NowMs());
    if (!status.ok()) {
      actions.push_back([done, status] { done(status); });
    } else {
      Persist(std::move(done));
      Progress(&actions);
    }
  }
  for (const auto& action : actions) action();
}

BufferStats BufferCore::Stats() {
  absl::MutexLock lock(&mu_);
  const GroupCounts counts = groups_.Counts();
  BufferStats stats = totals_;
  stats.leased_groups = static_cast<uint64_t>(counts.in_flight.leased);
  stats.ready_groups = static_cast<uint64_t>(counts.in_flight.ready);
  stats.assigned_groups = static_cast<uint64_t>(counts.assigned);
  stats.committed_groups = static_cast<uint64_t>(counts.committed);
  stats.dropped_groups = counts.dropped;
  stats.expired_leases = static_cast<uint64_t>(counts.expired_leases);
  stats.dropped_tokens = static_cast<uint64_t>(counts.dropped_tokens);
  stats.expected_drop_rate = counts.drop_rate;
  stats.admission_window_groups = static_cast<uint64_t>(counts.window);
  stats.version = groups_.meta().version;
  stats.run = options_.run;
  return stats;
}

// ---------------------------------------------------------------- the timer

absl::Time BufferCore::NextDeadline() const {
  absl::Time next = std::min(options_.clock->Now() + kTimerIdle, retry_write_at_);
  const int64_t lease_ms = groups_.NextLeaseDeadline();
  if (lease_ms != std::numeric_limits<int64_t>::max()) {
    next = std::min(next, absl::FromUnixMillis(lease_ms));
  }
  for (const LeaseWait& wait : lease_waits_) next = std::min(next, wait.deadline);
  for (const BatchWait& wait : batch_waits_) next = std::min(next, wait.deadline);
  return next;
}

void BufferCore::WakeTimerIfSooner() {
  if (NextDeadline() < timer_until_) timer_wake_ = true;
}

void BufferCore::TimerLoop() {
  for (;;) {
    Actions actions;
    {
      absl::MutexLock lock(&mu_);
      timer_until_ = NextDeadline();
      timer_wake_ = false;
      options_.clock->AwaitWithDeadline(
          &mu_,
          absl::Condition(
              +[](BufferCore* core) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core->mu_) {
                return core->stopping_ || core->timer_wake_;
              },
              this),
          timer_until_);
      if (stopping_) return;
      const absl::Time now = options_.clock->Now();
      groups_.ExpireLeases(absl::ToUnixMillis(now));
      if (now >= retry_write_at_) retry_write_at_ = absl::InfiniteFuture();
      Progress(&actions);  // writes what a failed write left, too
      EndWaits(now, &actions);
    }
    for (const auto& action : actions) action();
  }
}

// ---------------------------------------------------------------- metrics

BufferCore::Instruments::Instruments(Metrics* metrics)
    : metrics(metrics),
      push_stored(Pushes("stored")),
      push_duplicate(Pushes("duplicate")),
      push_refused(Pushes("refused")),
      push_errors(Pushes("error")),
      push_seconds(metrics->AddHistogram(
          "millrace_buffer_push_seconds",
          "Seconds from the arrival of a trajectory to its answer, the disk included.",
          Metrics::SecondsBuckets())),
      staleness(metrics->AddHistogram("millrace_buffer_staleness_versions",
                                      "Staleness of groups when they are handed to the learner.",
                                      Metrics::StalenessBuckets())),
      active_leases(Gauged("millrace_buffer_active_leases", "Leases that a server holds.")),
      leased(Gauged("millrace_buffer_leased_groups", "Groups being produced.")),
      ready(Gauged("millrace_buffer_ready_groups", "Complete groups that wait for a batch.")),
      assigned(Gauged("millrace_buffer_assigned_groups",
                      "Groups handed to the learner and not committed.")),
      committed(Gauged("millrace_buffer_committed_groups",
                       "Groups whose update is in a durable checkpoint.")),
      window(
          Gauged("millrace_buffer_admission_window_groups", "Largest number of groups in flight.")),
      drop_rate(Gauged("millrace_buffer_expected_drop_rate_ratio",
                       "Share of groups that the filters are expected to drop.")),
      version(Gauged("millrace_buffer_version", "The learner's newest version, -1 = none.")),
      queued_bytes(
          Gauged("millrace_buffer_queued_bytes", "Bytes of trajectories that wait for the disk.")),
      waiting(Gauged("millrace_buffer_waiting_calls",
                     "Lease and NextBatch calls that wait for groups.")),
      expired_leases(metrics->AddCounter("millrace_buffer_expired_leases_total",
                                         "Leases that ran out, or whose server came back as a new "
                                         "process.")),
      dropped_tokens(metrics->AddCounter("millrace_buffer_dropped_tokens_total",
                                         "Sampled tokens in dropped groups.")) {}

Counter& BufferCore::Instruments::Pushes(const char* result) {
  return metrics->AddCounter("millrace_buffer_pushes_total", "Pushed trajectories by result.",
                             {{"result", result}});
}

Gauge& BufferCore::Instruments::Gauged(const char* name, const char* help) {
  return metrics->AddGauge(name, help);
}

void BufferCore::UpdateMetrics() {
  const BufferStats stats = Stats();
  Instruments& in = *instruments_;
  in.leased.Set(static_cast<double>(stats.leased_groups));
  in.ready.Set(static_cast<double>(stats.ready_groups));
  in.assigned.Set(static_cast<double>(stats.assigned_groups));
  in.committed.Set(static_cast<double>(stats.committed_groups));
  in.window.Set(static_cast<double>(stats.admission_window_groups));
  in.drop_rate.Set(stats.expected_drop_rate);
  in.version.Set(static_cast<double>(stats.version));
  in.queued_bytes.Set(static_cast<double>(store_->queued_bytes()));
  // Counters go on from the totals of the whole run, also after a restart.
  absl::MutexLock lock(&mu_);
  in.waiting.Set(static_cast<double>(lease_waits_.size() + batch_waits_.size()));
  in.active_leases.Set(static_cast<double>(groups_.Counts().active_leases));
  const auto follow = [](Counter& counter, double total) {
    if (total > counter.Value()) counter.Increment(total - counter.Value());
  };
  follow(in.expired_leases, static_cast<double>(stats.expired_leases));
  follow(in.dropped_tokens, static_cast<double>(stats.dropped_tokens));
  for (const auto& [reason, count] : stats.dropped_groups) {
    follow(in.metrics->AddCounter("millrace_buffer_dropped_groups_total",
                                  "Dropped groups by reason.", {{"reason", reason}}),
           static_cast<double>(count));
  }
}

}  // namespace millrace
