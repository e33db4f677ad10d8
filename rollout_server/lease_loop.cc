#include "rollout_server/lease_loop.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/grpc_util.h"
#include "common/status_macros.h"
#include "rollout_server/lease_loop_state.h"
#include "spdlog/spdlog.h"

namespace millrace {
namespace {

constexpr absl::Duration kSlice = absl::Milliseconds(100);
constexpr absl::Duration kHealthGrace = absl::Seconds(60);
constexpr absl::Duration kFlush = absl::Seconds(1);
constexpr absl::Duration kLogEvery = absl::Seconds(10);

}  // namespace

void LeaseLoop::State::UpdateGauges() {
  metrics.held_groups.Set(static_cast<double>(book.size()));
  metrics.verify_queue.Set(static_cast<double>(to_verify.size()));
  EnterState();
}

void LeaseLoop::State::EnterState() {
  if (book.generating_samples() > 0 || evaluating) {
    metrics.time.Enter("busy");
  } else if (book.AwaitedVersion() >= 0 || parts.versions->active_version() < 0) {
    metrics.time.Enter("wait_weights");
  } else {
    metrics.time.Enter(draining ? "drained" : "wait_lease");
  }
}

void LeaseLoop::State::NoteBuffer(const absl::Status& status, const char* call) {
  const absl::Time now = Now();
  absl::MutexLock lock(&mu);
  if (status.ok()) {
    if (!buffer_error.ok()) spdlog::info("rollout: the buffer answers again");
    buffer_error = absl::OkStatus();
    buffer_ok_at = now;
    return;
  }
  buffer_error = status;
  if (now - logged_at < kLogEvery) return;
  logged_at = now;
  spdlog::warn("rollout: {} failed (last answer {} ago): {}", call,
               absl::FormatDuration(now - buffer_ok_at), status.ToString());
}

void LeaseLoop::State::RenewDue() {
  std::vector<LeaseName> due;
  {
    absl::MutexLock lock(&mu);
    due = book.DueForRenewal(Now());
  }
  if (due.empty()) return;
  absl::StatusOr<RenewResult> result = parts.buffer->Renew(due);
  NoteBuffer(result.status(), "Renew");
  if (!result.ok()) return;  // tried again at the next turn
  std::vector<uint64_t> cancel;
  {
    absl::MutexLock lock(&mu);
    book.Renewed(due, Nearer(result->deadline), Now());
    for (const LeaseName& name : result->lost) {
      if (!book.Wanted(name)) continue;  // ended meanwhile
      metrics.Groups("lost").Increment();
      spdlog::warn("rollout: lost the lease of group {} attempt {}", name.group_id, name.attempt);
    }
    cancel = book.Remove(result->lost);
    UpdateGauges();
  }
  for (uint64_t request : cancel) parts.engine->Cancel(request);
}

void LeaseLoop::State::GiveBackOverdue() {
  absl::MutexLock lock(&mu);
  const int64_t awaited = book.AwaitedVersion();
  std::vector<LeaseName> overdue = book.TakeOverdue(Now() - options.version_wait);
  if (overdue.empty()) return;
  spdlog::warn("rollout: giving back {} groups: waited {} for version {}, active is {}",
               overdue.size(), absl::FormatDuration(options.version_wait), awaited,
               parts.versions->active_version());
  metrics.Groups("overdue").Increment(static_cast<double>(overdue.size()));
  to_release.insert(to_release.end(), overdue.begin(), overdue.end());
  UpdateGauges();
}

void LeaseLoop::State::ReleaseQueued() {
  std::vector<LeaseName> names;
  {
    absl::MutexLock lock(&mu);
    names.swap(to_release);
  }
  if (names.empty()) return;
  metrics.Groups("released").Increment(static_cast<double>(names.size()));
  // Not repeated on failure: the leases run out by themselves.
  NoteBuffer(parts.buffer->Release(names), "Release");
}

absl::Status LeaseLoop::State::CheckStreaks() {
  absl::MutexLock lock(&mu);
  if (failed_groups >= options.max_failed_groups) {
    return absl::Status(last_failure.code(),
                        absl::StrCat(failed_groups, " groups in a row could not be sampled; last: ",
                                     last_failure.message()));
  }
  if (cancelled_samples >= options.max_cancelled_samples) {
    return absl::InternalError(absl::StrCat("the engine gave up ", cancelled_samples,
                                            " samples in a row; its errors are in the log"));
  }
  return absl::OkStatus();
}

absl::Status LeaseLoop::State::SubmitReady(int64_t active) {
  std::vector<GroupLease> leases;
  {
    absl::MutexLock lock(&mu);
    leases = book.TakeSubmittable(active);
    UpdateGauges();
  }
  for (GroupLease& lease : leases) {
    if (lease.task != parts.task->name()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the buffer leased group ", lease.group_id, " of task \"", lease.task,
                       "\"; this rollout server has task \"", parts.task->name(),
                       "\": start both with the same config"));
    }
    auto group = std::make_shared<RunningGroup>();
    group->origin = {options.run, options.server, options.sampling.temperature, std::move(lease)};
    absl::StatusOr<PreparedProblem> prepared = PrepareProblem(
        *parts.task, *parts.tokenizer, Split::kTrain, group->origin.lease.problem_id);
    absl::Status status = prepared.status();
    if (prepared.ok()) {
      group->prepared = *std::move(prepared);
      status = CheckPromptLength(group->prepared, options.max_prompt_tokens);
    }
    if (status.ok()) {
      SubmitGroup(std::move(group));
    } else {
      FailGroup(*group, status);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> LeaseLoop::State::LeaseMore() {
  uint32_t groups = 1;
  {
    absl::MutexLock lock(&mu);
    const int64_t room = options.max_unfinished - static_cast<int64_t>(book.unfinished_samples());
    const int64_t fit = (room + options.group_size - 1) / options.group_size;
    // Half of the room a call: servers that start together get about the same share of a window
    // that is smaller than their engines.
    groups = static_cast<uint32_t>(std::max<int64_t>(1, (fit + 1) / 2));
  }
  absl::StatusOr<LeaseResult> result = parts.buffer->Lease(groups, options.lease_wait);
  NoteBuffer(result.status(), "Lease");
  if (!result.ok()) {
    if (!IsRetryable(result.status())) return result.status();
    absl::Duration silent;
    {
      absl::MutexLock lock(&mu);
      silent = Now() - buffer_ok_at;
    }
    if (silent > options.buffer_retry) {
      return absl::UnavailableError(
          absl::StrCat("waited ", absl::FormatDuration(silent),
                       " for the buffer to answer Lease; last: ", result.status().ToString()));
    }
    AwaitWake(kSlice);
    return false;
  }
  if (result->finished) return true;
  metrics.leased.Increment(static_cast<double>(result->leases.size()));
  absl::MutexLock lock(&mu);
  for (GroupLease& lease : result->leases) {
    if (draining) {
      to_release.push_back(NameOf(lease));  // they came while Drain() was called
    } else {
      lease.deadline = Nearer(lease.deadline);
      book.Add(std::move(lease), Now());
    }
  }
  UpdateGauges();
  return false;
}

void LeaseLoop::State::AwaitWake(absl::Duration timeout) {
  absl::MutexLock lock(&mu);
  parts.clock->AwaitWithDeadline(&mu, absl::Condition(&wake), Now() + timeout);
  wake = false;
}

LeaseLoop::LeaseLoop(Options options, Parts parts)
    : state_(std::make_shared<State>(std::move(options), parts)) {
  {
    absl::MutexLock lock(&state_->mu);
    state_->buffer_ok_at = state_->Now();
  }
  for (int i = 0; i < state_->options.verify_threads; ++i) {
    state_->verifiers.emplace_back([state = state_.get()] { state->VerifyLoop(); });
  }
}

LeaseLoop::~LeaseLoop() {
  Drain(absl::ZeroDuration());
  {
    absl::MutexLock lock(&state_->mu);
    state_->closing = true;
    state_->to_verify.clear();
  }
  for (std::thread& t : state_->verifiers) t.join();
}

absl::StatusOr<LeaseLoop::End> LeaseLoop::Run(const std::function<absl::StatusOr<bool>()>& stop) {
  // Before there are weights to lease with: what a killed process of this name held is free again.
  state_->NoteBuffer(state_->parts.buffer->Release({}), "Release");
  while (true) {
    MR_ASSIGN_OR_RETURN(const bool stopped, stop());
    if (stopped) return End::kStopped;
    state_->RenewDue();
    state_->GiveBackOverdue();
    state_->ReleaseQueued();
    state_->PushReplacements();
    MR_RETURN_IF_ERROR(state_->CheckStreaks());
    const int64_t active = state_->parts.versions->active_version();
    MR_RETURN_IF_ERROR(state_->SubmitReady(active));
    int64_t awaited;
    bool lease;
    const Engine::Stats stats = state_->parts.engine->stats();
    {
      absl::MutexLock lock(&state_->mu);
      state_->evaluating =
          stats.running + stats.waiting > static_cast<int64_t>(state_->book.generating_samples());
      state_->EnterState();
      awaited = std::max<int64_t>(0, state_->book.AwaitedVersion());
      lease = !state_->draining && static_cast<int64_t>(state_->book.unfinished_samples()) <
                                       state_->options.max_unfinished;
    }
    if (awaited > active) {
      // No lease before there are weights to sample from, nor while held groups wait for newer
      // ones: another server may be further. The wait's outcome shows in active_version().
      state_->parts.versions->WaitForVersion(awaited, kSlice).IgnoreError();
    } else if (lease) {
      MR_ASSIGN_OR_RETURN(const bool finished, state_->LeaseMore());
      if (finished) return End::kFinished;
    } else {
      state_->AwaitWake(kSlice);
    }
  }
}

uint32_t LeaseLoop::Drain(absl::Duration timeout, const std::function<bool()>& enough) {
  const absl::Time deadline = state_->Now() + timeout;
  while (true) {
    const bool over = enough && enough();
    {
      absl::MutexLock lock(&state_->mu);
      state_->draining = true;
      if (state_->book.size() == 0 || state_->Now() >= deadline || over) break;
    }
    state_->RenewDue();
    state_->PushReplacements();
    state_->AwaitWake(std::min(kSlice, deadline - state_->Now()));
  }
  std::vector<LeaseName> left;
  std::vector<uint64_t> cancel;
  {
    absl::MutexLock lock(&state_->mu);
    left = state_->book.Names();
    cancel = state_->book.Remove(left);
    state_->to_release.insert(state_->to_release.end(), left.begin(), left.end());
    state_->wake = true;
    state_->UpdateGauges();
  }
  for (uint64_t request : cancel) state_->parts.engine->Cancel(request);
  state_->ReleaseQueued();
  // What was sampled to its end and pushed is worth the moment that its answer takes.
  if (!left.empty()) state_->parts.buffer->FlushPushes(kFlush).IgnoreError();
  return static_cast<uint32_t>(left.size());
}

bool LeaseLoop::draining() const {
  absl::MutexLock lock(&state_->mu);
  return state_->draining;
}

absl::Status LeaseLoop::health() const {
  absl::MutexLock lock(&state_->mu);
  const absl::Duration silent = state_->Now() - state_->buffer_ok_at;
  if (state_->buffer_error.ok() || silent < kHealthGrace) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("no answer from the buffer for ",
                                             absl::FormatDuration(silent),
                                             "; last: ", state_->buffer_error.ToString()));
}

}  // namespace millrace
