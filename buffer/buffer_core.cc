#include "buffer/buffer_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "buffer/buffer_instruments.h"
#include "common/files.h"
#include "common/grpc_util.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

// After a failed write, changes that nobody waits for are tried again this much later.
constexpr absl::Duration kWriteRetry = absl::Seconds(1);

absl::Status Stopping() { return absl::UnavailableError("the buffer is stopping"); }

GroupLease ToLease(LeaseGrant grant, const std::string& task) {
  GroupLease lease;
  lease.group_id = grant.group_id;
  lease.attempt = grant.attempt;
  lease.task = task;
  lease.problem_id = grant.problem_id;
  lease.seed = grant.seed;
  lease.group_size = grant.group_size;
  lease.missing = std::move(grant.missing);
  lease.min_version = grant.min_version;
  lease.deadline = absl::FromUnixMillis(grant.deadline_ms);
  return lease;
}

}  // namespace

BufferCore::Options BufferCore::FromConfig(const RunConfig& config, const std::string& run_dir) {
  Options options;
  options.run = config.run.name;
  options.store_path = JoinPath(run_dir, "buffer.sqlite");
  options.sync = config.buffer.durability == "sync";
  GroupStoreOptions& groups = options.groups;
  groups.task = config.task.name;
  groups.run_seed = static_cast<uint64_t>(config.run.seed);
  groups.group_size = static_cast<uint32_t>(config.rollout.group_size);
  groups.admission = {config.buffer.groups_per_step, config.buffer.version_lead,
                      config.buffer.oversample, config.buffer.max_oversample};
  groups.max_staleness = config.buffer.max_staleness;
  groups.retry_stale = config.buffer.stale_action == "retry";
  groups.max_attempts = static_cast<uint32_t>(config.buffer.max_attempts);
  groups.lease_ms = static_cast<int64_t>(config.buffer.lease_seconds * 1000);
  groups.keep_steps = static_cast<uint64_t>(config.buffer.keep_steps);
  const size_t message = static_cast<size_t>(kMaxMessageBytes) - (1 << 20);
  options.max_trajectory_bytes = message / std::max<size_t>(1, groups.group_size);
  return options;
}

BufferCore::BufferCore(Options options)
    : options_(std::move(options)),
      instruments_(std::make_unique<Instruments>(options_.metrics)),
      groups_(options_.groups) {}

absl::StatusOr<std::unique_ptr<BufferCore>> BufferCore::Open(Options options) {
  MR_RETURN_IF_ERROR(options.groups.Validate());
  auto core = std::unique_ptr<BufferCore>(new BufferCore(std::move(options)));
  BufferStore::Options store;
  store.path = core->options_.store_path;
  store.run = core->options_.run;
  store.sync = core->options_.sync;
  store.max_pages = core->options_.max_pages;
  store.clock = core->options_.clock;
  store.metrics = core->options_.metrics;
  MR_ASSIGN_OR_RETURN(core->store_, BufferStore::Open(std::move(store)));
  {
    absl::MutexLock lock(&core->mu_);
    MR_ASSIGN_OR_RETURN(const BufferStore::Totals totals,
                        core->store_->Load(&core->groups_, core->NowMs()));
    core->totals_.stored_trajectories = static_cast<uint64_t>(totals.trajectories);
    core->totals_.generated_tokens = static_cast<uint64_t>(totals.sampled_tokens);
    core->Persist(nullptr);  // groups that were judged only now
  }
  core->timer_ = std::thread([raw = core.get()] { raw->TimerLoop(); });
  return core;
}

BufferCore::~BufferCore() {
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    for (LeaseWait& wait : lease_waits_) {
      actions.push_back([reply = std::move(wait.reply)] { reply(Stopping()); });
    }
    for (BatchWait& wait : batch_waits_) {
      actions.push_back([reply = std::move(wait.reply)] { reply(Stopping()); });
    }
    lease_waits_.clear();
    batch_waits_.clear();
  }
  for (const auto& action : actions) action();
  if (timer_.joinable()) timer_.join();
  store_.reset();  // runs the callbacks of what is queued, which lock mu_
}

// ---------------------------------------------------------------- calls that may wait

BufferCore::WaitId BufferCore::Lease(std::string server, uint32_t max_groups, absl::Duration wait,
                                     Reply<LeaseResult> reply) {
  Actions actions;
  WaitId id;
  {
    absl::MutexLock lock(&mu_);
    id = next_wait_++;
    const absl::Time now = options_.clock->Now();
    lease_waits_.push_back({id,
                            std::move(server),
                            std::max<uint32_t>(1, max_groups),
                            now + wait,
                            std::move(reply),
                            {}});
    Progress(&actions);
    if (wait <= absl::ZeroDuration() || stopping_) EndWaits(now, &actions);
    WakeTimerIfSooner();
  }
  for (const auto& action : actions) action();
  return id;
}

BufferCore::WaitId BufferCore::NextBatch(uint64_t step, int64_t version, absl::Duration wait,
                                         Reply<BatchPlan> reply) {
  Actions actions;
  WaitId id;
  {
    absl::MutexLock lock(&mu_);
    id = next_wait_++;
    const absl::Time now = options_.clock->Now();
    batch_waits_.push_back({id, step, version, now + wait, std::move(reply)});
    Progress(&actions);
    if (wait <= absl::ZeroDuration() || stopping_) EndWaits(now, &actions);
    WakeTimerIfSooner();
  }
  for (const auto& action : actions) action();
  return id;
}

void BufferCore::CancelWait(WaitId id) {
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    const absl::Status gone = absl::CancelledError("the caller went away");
    for (auto it = lease_waits_.begin(); it != lease_waits_.end(); ++it) {
      if (it->id != id) continue;
      actions.push_back([reply = std::move(it->reply), gone] { reply(gone); });
      lease_waits_.erase(it);
      break;
    }
    for (auto it = batch_waits_.begin(); it != batch_waits_.end(); ++it) {
      if (it->id != id) continue;
      actions.push_back([reply = std::move(it->reply), gone] { reply(gone); });
      batch_waits_.erase(it);
      break;
    }
  }
  for (const auto& action : actions) action();
}

void BufferCore::Progress(Actions* actions) {
  ProgressBatches(actions);  // may drop stale groups and so make room for leases
  ProgressLeases(actions);
  Persist(nullptr);
  WakeTimerIfSooner();
}

void BufferCore::ProgressBatches(Actions* actions) {
  for (auto it = batch_waits_.begin(); it != batch_waits_.end();) {
    const bool again = groups_.FindBatch(it->step) != nullptr;
    absl::StatusOr<std::vector<uint64_t>> groups =
        groups_.TakeBatch(it->step, it->version, NowMs());
    if (groups.ok() && groups->empty()) {
      ++it;
      continue;
    }
    BatchWait wait = std::move(*it);
    it = batch_waits_.erase(it);
    if (!groups.ok()) {
      actions->push_back(
          [reply = std::move(wait.reply), status = groups.status()] { reply(status); });
      continue;
    }
    BatchPlan plan{*std::move(groups), groups_.FindBatch(wait.step)->dropped, ""};
    if (!again) {
      for (const uint64_t id : plan.groups) {
        instruments_->staleness.Observe(static_cast<double>(groups_.StalenessOf(id, wait.version)));
      }
    }
    Persist([reply = std::move(wait.reply), plan = std::move(plan)](const absl::Status& status) {
      if (status.ok()) {
        reply(plan);
      } else {
        reply(status);
      }
    });
  }
}

void BufferCore::ProgressLeases(Actions* actions) {
  if (groups_.meta().finished) {
    LeaseResult finished;
    finished.finished = true;
    for (LeaseWait& wait : lease_waits_) {
      actions->push_back([reply = std::move(wait.reply), finished] { reply(finished); });
    }
    lease_waits_.clear();
    return;
  }
  // One group for each who waits, in turns, so that no server takes all that a new version frees.
  for (bool granted = true; granted && groups_.CanGrant();) {
    granted = false;
    for (LeaseWait& wait : lease_waits_) {
      if (wait.grants.size() >= wait.max_groups) continue;
      for (LeaseGrant& grant : groups_.Grant(wait.server, 1, NowMs())) {
        wait.grants.push_back(std::move(grant));
        granted = true;
      }
    }
  }
  for (auto it = lease_waits_.begin(); it != lease_waits_.end();) {
    if (it->grants.empty()) {
      ++it;
      continue;
    }
    AnswerLease(std::move(*it));
    it = lease_waits_.erase(it);
  }
}

void BufferCore::AnswerLease(LeaseWait wait) {
  LeaseResult result;
  for (LeaseGrant& grant : wait.grants) {
    result.leases.push_back(ToLease(std::move(grant), options_.groups.task));
  }
  Persist([reply = std::move(wait.reply), result = std::move(result)](const absl::Status& status) {
    if (status.ok()) {
      reply(result);
    } else {
      reply(status);
    }
  });
}

void BufferCore::EndWaits(absl::Time until, Actions* actions) {
  for (auto it = lease_waits_.begin(); it != lease_waits_.end();) {
    if (it->deadline > until) {
      ++it;
      continue;
    }
    LeaseResult result;
    result.waiting_for = groups_.WhyNoLease();
    actions->push_back([reply = std::move(it->reply), result] { reply(result); });
    it = lease_waits_.erase(it);
  }
  for (auto it = batch_waits_.begin(); it != batch_waits_.end();) {
    if (it->deadline > until) {
      ++it;
      continue;
    }
    BatchPlan plan;
    plan.waiting_for = groups_.WhyNoBatch();
    actions->push_back([reply = std::move(it->reply), plan] { reply(plan); });
    it = batch_waits_.erase(it);
  }
}

// ---------------------------------------------------------------- the disk

void BufferCore::NoteFailure() {
  ++write_failures_;
  retry_write_at_ = std::min(retry_write_at_, options_.clock->Now() + kWriteRetry);
  WakeTimerIfSooner();
}

void BufferCore::Persist(Done done) {
  StoreChange change;
  change.groups = groups_.TakeDirty();
  if (change.groups.empty() && done == nullptr) return;
  change.meta = groups_.meta();
  GroupStore::Changes changes = change.groups;
  store_->Write(std::move(change), [this, changes = std::move(changes), before = write_failures_,
                                    done = std::move(done)](absl::Status status) {
    OnPersisted(changes, before, done, std::move(status));
  });
}

void BufferCore::OnPersisted(const GroupStore::Changes& changes, uint64_t failures_before,
                             const Done& done, absl::Status status) {
  {
    absl::MutexLock lock(&mu_);
    if (!status.ok()) {
      groups_.MarkDirty(changes);
      NoteFailure();
    } else if (write_failures_ != failures_before) {
      status = absl::UnavailableError("a write before this one failed; try again");
    }
  }
  if (done != nullptr) done(std::move(status));
}

// ---------------------------------------------------------------- pushes

void BufferCore::Answer(const Reply<PushAnswer>& reply, absl::Time begin,
                        absl::StatusOr<PushAnswer> answer) {
  instruments_->push_seconds.Observe(absl::ToDoubleSeconds(options_.clock->Now() - begin));
  if (!answer.ok()) {
    instruments_->push_errors.Increment();
  } else if (answer->outcome == PushOutcome::kStored) {
    instruments_->push_stored.Increment();
  } else {
    const bool duplicate = answer->outcome == PushOutcome::kDuplicate;
    (duplicate ? instruments_->push_duplicate : instruments_->push_refused).Increment();
    absl::MutexLock lock(&mu_);
    ++(duplicate ? totals_.duplicate_pushes : totals_.refused_pushes);
  }
  reply(std::move(answer));
}

void BufferCore::Push(Trajectory trajectory, Reply<PushAnswer> reply) {
  const absl::Time begin = options_.clock->Now();
  if (trajectory.key.run != options_.run) {
    return Answer(reply, begin,
                  absl::FailedPreconditionError(absl::StrCat("key.run is \"", trajectory.key.run,
                                                             "\", this buffer serves run \"",
                                                             options_.run, "\"")));
  }
  const auto refuse = [&](std::string reason) {
    Answer(reply, begin, PushAnswer{PushOutcome::kRefused, std::move(reason)});
  };
  if (absl::Status valid = ValidateTrajectory(trajectory); !valid.ok()) {
    return refuse(std::string(valid.message()));
  }
  TrajectoryRow row = MakeTrajectoryRow(std::move(trajectory));
  if (row.bytes() > options_.max_trajectory_bytes) {
    return refuse(absl::StrCat("trajectory of ", row.bytes(), " bytes (", row.tokens,
                               " tokens): the limit is ", options_.max_trajectory_bytes,
                               " bytes, so that a group fits into one message"));
  }
  const TrajectoryKey& key = row.trajectory.key;
  const uint64_t group_id = key.group_id;
  const MemberSummary member = row.summary;
  absl::ReleasableMutexLock lock(&mu_);
  PushVerdict verdict =
      groups_.Reserve({group_id, key.index, key.attempt, row.trajectory.problem_id});
  if (verdict.kind == PushVerdict::kRefuse) {
    lock.Release();
    return refuse(std::move(verdict.reason));
  }
  if (verdict.kind == PushVerdict::kDuplicate) {
    // The first copy may still be on its way to the disk: answer behind it.
    Persist([this, reply = std::move(reply), begin](const absl::Status& status) {
      if (status.ok()) {
        Answer(reply, begin, PushAnswer{PushOutcome::kDuplicate, ""});
      } else {
        Answer(reply, begin, status);
      }
    });
    return;
  }
  StoreChange change;
  change.trajectory = std::move(row);
  store_->Write(std::move(change),
                [this, group_id, member, begin, reply = std::move(reply)](absl::Status status) {
                  OnPushWritten(group_id, member, &status);
                  if (status.ok()) {
                    Answer(reply, begin, PushAnswer{});
                  } else {
                    Answer(reply, begin, status);
                  }
                });
}

void BufferCore::OnPushWritten(uint64_t group_id, const MemberSummary& member,
                               absl::Status* status) {
  Actions actions;
  {
    absl::MutexLock lock(&mu_);
    if (!status->ok()) {
      groups_.Unreserve(group_id, member.index);
      NoteFailure();
      return;
    }
    groups_.Confirm(group_id, member, NowMs());
    ++totals_.stored_trajectories;
    totals_.generated_tokens += static_cast<uint64_t>(member.sampled_tokens);
    const GroupRow* row = groups_.Find(group_id);
    const bool complete = row == nullptr || row->state != GroupState::kLeased;
    if (complete && !stopping_) Progress(&actions);
  }
  for (const auto& action : actions) action();
}

}  // namespace millrace
