#include "absl/strings/str_cat.h"
#include "rollout_server/lease_loop_state.h"
#include "spdlog/spdlog.h"

namespace millrace {

void LeaseLoop::State::SubmitGroup(std::shared_ptr<const RunningGroup> group) {
  const GroupLease& lease = group->origin.lease;
  EngineRequest request;
  request.prompt = group->prepared.prompt;
  request.indices = lease.missing;
  request.seed = lease.seed;
  request.sampling = options.sampling;
  request.max_new_tokens = options.max_new_tokens;
  request.stop_ids = options.stop_ids;
  request.stop = MakeStopCheck(parts.tokenizer, parts.task->StopStrings());
  request.on_sample = [self = shared_from_this(), group](GeneratedSample sample) {
    self->OnSample(group, std::move(sample));
  };
  absl::StatusOr<uint64_t> id = parts.engine->Submit(std::move(request));
  if (!id.ok()) {
    FailGroup(*group, id.status());
    return;
  }
  bool wanted;
  {
    absl::MutexLock lock(&mu);
    failed_groups = 0;
    book.SetRequest(NameOf(lease), *id);
    wanted = book.Wanted(NameOf(lease));
  }
  if (!wanted) parts.engine->Cancel(*id);  // drained while it was being submitted
}

void LeaseLoop::State::FailGroup(const RunningGroup& group, const absl::Status& why) {
  const GroupLease& lease = group.origin.lease;
  spdlog::warn("rollout: group {} (problem {}) cannot be sampled: {}", lease.group_id,
               lease.problem_id, why.ToString());
  metrics.Groups("failed").Increment();
  {
    absl::MutexLock lock(&mu);
    ++failed_groups;
    last_failure = why;
  }
  for (uint32_t index : lease.missing) {
    Trajectory t = FailedTrajectory(group.origin, index, group.prepared.prompt, why);
    t.created_unix_us = absl::ToUnixMicros(Now());
    {
      absl::MutexLock lock(&mu);
      book.SampleEnded(NameOf(lease));
    }
    Push(t);
  }
}

void LeaseLoop::State::OnSample(std::shared_ptr<const RunningGroup> group, GeneratedSample sample) {
  const int64_t now_us = absl::ToUnixMicros(Now());
  absl::MutexLock lock(&mu);
  const LeaseName name = NameOf(group->origin.lease);
  if (closing || !book.Wanted(name)) return;  // lost, drained
  cancelled_samples = sample.reason == FinishReason::kCancelled ? cancelled_samples + 1 : 0;
  book.SampleEnded(name);
  to_verify.push_back({std::move(group), std::move(sample), now_us});
  wake = true;
  UpdateGauges();
}

void LeaseLoop::State::VerifyLoop() {
  while (true) {
    EndedSample ended;
    {
      absl::MutexLock lock(&mu);
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
        return closing || !to_verify.empty();
      };
      while (
          !parts.clock->AwaitWithDeadline(&mu, absl::Condition(&ready), Now() + absl::Seconds(1))) {
      }
      if (closing) return;
      ended = std::move(to_verify.front());
      to_verify.pop_front();
      metrics.verify_queue.Set(static_cast<double>(to_verify.size()));
      if (!book.Wanted(NameOf(ended.group->origin.lease))) continue;
    }
    VerifyAndPush(std::move(ended));
  }
}

void LeaseLoop::State::VerifyAndPush(EndedSample ended) {
  SampleOutcome outcome;
  outcome.sample = std::move(ended.sample);
  outcome.ended_unix_us = ended.unix_us;
  outcome.completion_text = parts.tokenizer->Decode(outcome.sample.token_ids);
  if (outcome.sample.reason != FinishReason::kCancelled) {
    const absl::Time start = Now();
    outcome.verdict =
        VerifyGuarded(*parts.task, ended.group->prepared.problem, outcome.completion_text);
    metrics.verify_seconds.Observe(absl::ToDoubleSeconds(Now() - start));
  }
  Trajectory t = BuildTrajectory(ended.group->origin, ended.group->prepared, outcome);
  if (t.status == TrajectoryStatus::kTruncated) metrics.truncated.Increment();
  if (t.status == TrajectoryStatus::kFailed) {
    spdlog::warn("rollout: group {} index {} failed: {}", t.key.group_id, t.key.index,
                 t.status_detail);
  }
  metrics.sampled_tokens.Increment(static_cast<double>(outcome.sample.token_ids.size()));
  metrics.response_tokens.Observe(static_cast<double>(outcome.sample.token_ids.size()));
  metrics.generate_seconds.Observe(outcome.sample.seconds);
  Push(t);
}

void LeaseLoop::State::Push(const Trajectory& trajectory) {
  metrics.Trajectories(trajectory.status).Increment();
  const TrajectoryKey key = trajectory.key;
  const bool last = trajectory.status == TrajectoryStatus::kFailed;
  const auto replacement =
      last ? nullptr : std::make_shared<Trajectory>(WithoutVerdict(trajectory));
  parts.buffer->Push(
      trajectory, [self = shared_from_this(), key, replacement](absl::StatusOr<PushOutcome> outcome,
                                                                const std::string& reason) {
        self->OnPushed(key, outcome, reason, replacement.get());
      });
}

void LeaseLoop::State::PushReplacements() {
  std::vector<Trajectory> replacements;
  {
    absl::MutexLock lock(&mu);
    replacements.swap(to_replace);
  }
  for (const Trajectory& t : replacements) Push(t);
}

void LeaseLoop::State::OnPushed(const TrajectoryKey& key,
                                const absl::StatusOr<PushOutcome>& outcome,
                                const std::string& reason, Trajectory* replacement) {
  const bool stored = outcome.ok() && *outcome != PushOutcome::kRefused;
  if (!outcome.ok()) {
    metrics.Pushes("unconfirmed").Increment();
    spdlog::error("rollout: push of group {} index {} attempt {} was not confirmed: {}",
                  key.group_id, key.index, key.attempt, outcome.status().ToString());
  } else if (!stored) {
    metrics.Pushes("refused").Increment();
    spdlog::warn("rollout: the buffer refused group {} index {} attempt {}: {}", key.group_id,
                 key.index, key.attempt, reason);
  } else {
    metrics.Pushes(*outcome == PushOutcome::kStored ? "stored" : "duplicate").Increment();
  }
  absl::MutexLock lock(&mu);
  const LeaseName name{key.group_id, key.attempt};
  if (outcome.ok() && !stored && replacement != nullptr && book.Wanted(name)) {
    // Sampled again it would be refused again, and the group be leased for ever. Not pushed from
    // here: this thread is the one that makes room for pushes.
    replacement->status_detail = absl::StrCat("the buffer refused it: ", reason);
    to_replace.push_back(std::move(*replacement));
    wake = true;
    return;
  }
  const GroupBook::Ended ended = book.PushAnswered(name, stored);
  if (!ended.done) return;
  if (ended.whole) metrics.Groups("pushed").Increment();
  if (ended.release) to_release.push_back(name);
  wake = true;
  UpdateGauges();
}

}  // namespace millrace
