#include "buffer/buffer_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "buffer/push_stream.h"
#include "buffer/trajectory_proto.h"
#include "common/backoff.h"
#include "common/clock.h"
#include "common/grpc_util.h"
#include "common/status_macros.h"
#include "proto/buffer.grpc.pb.h"

namespace millrace {
namespace {

// A call is given this much longer than the buffer waits, for the way there and back and the disk.
constexpr absl::Duration kMargin = absl::Seconds(10);
// Longest wait asked for in one call; longer ones are several calls.
constexpr absl::Duration kLongestWait = absl::Seconds(30);

uint32_t Millis(absl::Duration wait) {
  return static_cast<uint32_t>(std::max<int64_t>(0, absl::ToInt64Milliseconds(wait)));
}

GroupLease LeaseOf(const v1::GroupLease& proto) {
  GroupLease lease;
  lease.group_id = proto.group_id();
  lease.attempt = proto.attempt();
  lease.task = proto.task();
  lease.problem_id = proto.problem_id();
  lease.seed = proto.seed();
  lease.group_size = proto.group_size();
  lease.missing.assign(proto.missing().begin(), proto.missing().end());
  lease.min_version = proto.min_version();
  lease.deadline = absl::FromUnixMillis(proto.deadline_unix_ms());
  return lease;
}

// This client cancels no call of its own, so CANCELLED and UNKNOWN come from a server that was cut
// off.
bool MayPass(const absl::Status& status) {
  return IsRetryable(status) || absl::IsCancelled(status) || absl::IsUnknown(status);
}

template <typename Request>
void AddLeases(const std::vector<LeaseName>& leases, Request* request) {
  for (const LeaseName& lease : leases) {
    v1::LeaseName* out = request->add_leases();
    out->set_group_id(lease.group_id);
    out->set_attempt(lease.attempt);
  }
}

grpc::Status ReadBatch(v1::Buffer::Stub* stub, grpc::ClientContext* context,
                       const v1::NextBatchRequest& request, Batch* batch,
                       std::string* waiting_for) {
  const auto reader = stub->NextBatch(context, request);
  v1::BatchPart part;
  bool ended = false;
  absl::Status bad;
  while (bad.ok() && reader->Read(&part)) {
    if (part.has_end()) {
      ended = part.end().groups() == batch->groups.size();
      batch->dropped.insert(part.end().dropped().begin(), part.end().dropped().end());
      *waiting_for = part.end().waiting_for();
      continue;
    }
    BatchGroup group{part.group().group_id(), {}};
    for (const v1::Trajectory& proto : part.group().trajectories()) {
      absl::StatusOr<Trajectory> trajectory = FromProto(proto);
      bad.Update(trajectory.status());
      if (trajectory.ok()) group.trajectories.push_back(*std::move(trajectory));
    }
    batch->groups.push_back(std::move(group));
  }
  if (!bad.ok()) {
    context->TryCancel();
    reader->Finish();
    return ToGrpc(bad);
  }
  grpc::Status status = reader->Finish();
  if (status.ok() && !ended) {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the batch ended early");
  }
  return status;
}

}  // namespace

struct BufferClient::Impl {
  explicit Impl(Options o)
      : options(std::move(o)),
        channel(MakeChannel(options.address)),
        stub(v1::Buffer::NewStub(channel)) {}

  // Runs `call` until it succeeds, fails for good, or has been failing for retry_for. `call` gets a
  // context with the deadline `timeout` from now.
  template <typename Call>
  absl::Status Retry(const char* what, absl::Duration timeout, const Call& call) {
    Backoff backoff({}, reinterpret_cast<uintptr_t>(this));
    const absl::Time give_up = Clock::Real()->Now() + options.retry_for;
    for (;;) {
      grpc::ClientContext context;
      SetDeadline(&context, timeout);
      absl::Status status =
          FromGrpc(call(&context), absl::StrCat(what, " on the buffer at ", options.address));
      if (status.ok() || !MayPass(status)) return status;
      const absl::Duration delay = backoff.Next();
      if (Clock::Real()->Now() + delay >= give_up) {
        return absl::Status(status.code(),
                            absl::StrCat(status.message(), " (tried for ",
                                         absl::FormatDuration(options.retry_for), ")"));
      }
      absl::MutexLock lock(&mu);
      const auto never = [] { return false; };
      mu.AwaitWithTimeout(absl::Condition(&never), delay);
    }
  }

  PushStream* Pushes() {
    absl::MutexLock lock(&mu);
    if (pushes == nullptr) {
      pushes = std::make_unique<PushStream>(channel, options.address, options.retry_for);
    }
    return pushes.get();
  }

  const Options options;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::Buffer::Stub> stub;
  absl::Mutex mu;
  std::unique_ptr<PushStream> pushes ABSL_GUARDED_BY(mu);  // from the first Push on
};

BufferClient::BufferClient(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
BufferClient::~BufferClient() = default;

absl::StatusOr<LeaseResult> BufferClient::Lease(uint32_t max_groups, absl::Duration wait) {
  v1::LeaseRequest request;
  request.set_run(impl_->options.run);
  request.set_server(impl_->options.server);
  request.set_max_groups(max_groups);
  request.set_wait_ms(Millis(wait));
  request.set_instance(impl_->options.instance);
  v1::LeaseReply reply;
  MR_RETURN_IF_ERROR(impl_->Retry("Lease", wait + kMargin, [&](grpc::ClientContext* context) {
    return impl_->stub->Lease(context, request, &reply);
  }));
  LeaseResult result;
  for (const v1::GroupLease& lease : reply.leases()) result.leases.push_back(LeaseOf(lease));
  result.waiting_for = reply.waiting_for();
  result.finished = reply.finished();
  return result;
}

absl::StatusOr<RenewResult> BufferClient::Renew(const std::vector<LeaseName>& leases) {
  v1::RenewRequest request;
  request.set_server(impl_->options.server);
  AddLeases(leases, &request);
  v1::RenewReply reply;
  MR_RETURN_IF_ERROR(impl_->Retry("Renew", kMargin, [&](grpc::ClientContext* context) {
    return impl_->stub->Renew(context, request, &reply);
  }));
  RenewResult result;
  for (const v1::LeaseName& lost : reply.lost()) {
    result.lost.push_back({lost.group_id(), lost.attempt()});
  }
  result.deadline = absl::FromUnixMillis(reply.deadline_unix_ms());
  return result;
}

absl::Status BufferClient::Release(const std::vector<LeaseName>& leases) {
  v1::ReleaseRequest request;
  request.set_server(impl_->options.server);
  AddLeases(leases, &request);
  request.set_instance(impl_->options.instance);
  v1::ReleaseReply reply;
  return impl_->Retry("Release", kMargin, [&](grpc::ClientContext* context) {
    return impl_->stub->Release(context, request, &reply);
  });
}

void BufferClient::Push(const Trajectory& trajectory, PushCallback done) {
  impl_->Pushes()->Push(trajectory, std::move(done));
}

absl::Status BufferClient::FlushPushes(absl::Duration timeout) {
  return impl_->Pushes()->Flush(timeout);
}

absl::StatusOr<Batch> BufferClient::NextBatch(uint64_t step, int64_t version, absl::Duration wait) {
  const absl::Time deadline = Clock::Real()->Now() + wait;
  std::string waiting_for = "an answer";
  for (;;) {
    const absl::Duration left = deadline - Clock::Real()->Now();
    v1::NextBatchRequest request;
    request.set_step(step);
    request.set_version(version);
    const absl::Duration slice = std::clamp(left, absl::ZeroDuration(), kLongestWait);
    request.set_wait_ms(Millis(slice));
    Batch batch;
    // Also covers the time that the trajectories of a large batch take on the wire.
    MR_RETURN_IF_ERROR(
        impl_->Retry("NextBatch", slice + 6 * kMargin, [&](grpc::ClientContext* context) {
          batch = Batch{step, {}, {}};
          waiting_for.clear();
          return ReadBatch(impl_->stub.get(), context, request, &batch, &waiting_for);
        }));
    if (!batch.groups.empty()) return batch;
    if (Clock::Real()->Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("NextBatch of step ", step, " on the buffer at ", impl_->options.address,
                       " waited ", absl::FormatDuration(wait), " for ", waiting_for));
    }
  }
}

absl::Status BufferClient::Commit(uint64_t step, const std::string& checkpoint) {
  v1::CommitRequest request;
  request.set_step(step);
  request.set_checkpoint(checkpoint);
  v1::CommitReply reply;
  return impl_->Retry("Commit", kMargin, [&](grpc::ClientContext* context) {
    return impl_->stub->Commit(context, request, &reply);
  });
}

absl::StatusOr<RewindResult> BufferClient::Rewind(uint64_t step) {
  v1::RewindRequest request;
  request.set_step(step);
  v1::RewindReply reply;
  MR_RETURN_IF_ERROR(impl_->Retry("Rewind", kMargin, [&](grpc::ClientContext* context) {
    return impl_->stub->Rewind(context, request, &reply);
  }));
  return RewindResult{reply.returned_groups(), reply.committed_step(), reply.last_version()};
}

absl::Status BufferClient::SetVersion(int64_t version, bool finished) {
  v1::SetVersionRequest request;
  request.set_version(version);
  request.set_finished(finished);
  v1::SetVersionReply reply;
  return impl_->Retry("SetVersion", kMargin, [&](grpc::ClientContext* context) {
    return impl_->stub->SetVersion(context, request, &reply);
  });
}

absl::StatusOr<BufferStats> BufferClient::Stats() {
  v1::StatsReply reply;
  MR_RETURN_IF_ERROR(impl_->Retry("Stats", kMargin, [&](grpc::ClientContext* context) {
    return impl_->stub->Stats(context, v1::StatsRequest(), &reply);
  }));
  BufferStats stats;
  stats.leased_groups = reply.leased_groups();
  stats.ready_groups = reply.ready_groups();
  stats.assigned_groups = reply.assigned_groups();
  stats.committed_groups = reply.committed_groups();
  stats.dropped_groups.insert(reply.dropped_groups().begin(), reply.dropped_groups().end());
  stats.stored_trajectories = reply.stored_trajectories();
  stats.duplicate_pushes = reply.duplicate_pushes();
  stats.refused_pushes = reply.refused_pushes();
  stats.expired_leases = reply.expired_leases();
  stats.generated_tokens = reply.generated_tokens();
  stats.dropped_tokens = reply.dropped_tokens();
  stats.expected_drop_rate = reply.expected_drop_rate();
  stats.admission_window_groups = reply.admission_window_groups();
  stats.version = reply.version();
  stats.run = reply.run();
  return stats;
}

}  // namespace millrace
