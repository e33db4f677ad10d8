#include "buffer/buffer_service.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "buffer/push_reactor.h"
#include "buffer/trajectory_proto.h"
#include "common/grpc_util.h"

namespace millrace {
namespace {

// Ties a wait of the core to a call: a call that is cancelled ends its wait, whichever comes first.
class WaitHandle {
 public:
  explicit WaitHandle(BufferCore* core) : core_(core) {}
  void Set(BufferCore::WaitId id) {
    bool cancel = false;
    {
      absl::MutexLock lock(&mu_);
      id_ = id;
      cancel = cancelled_;
    }
    if (cancel) core_->CancelWait(id);
  }
  void Cancel() {
    BufferCore::WaitId id = 0;
    {
      absl::MutexLock lock(&mu_);
      cancelled_ = true;
      id = id_;
    }
    if (id != 0) core_->CancelWait(id);
  }

 private:
  BufferCore* const core_;
  absl::Mutex mu_;
  BufferCore::WaitId id_ ABSL_GUARDED_BY(mu_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

void FillLeases(const LeaseResult& result, v1::LeaseReply* reply) {
  reply->set_finished(result.finished);
  reply->set_waiting_for(result.waiting_for);
  for (const GroupLease& lease : result.leases) {
    v1::GroupLease* out = reply->add_leases();
    out->set_group_id(lease.group_id);
    out->set_attempt(lease.attempt);
    out->set_task(lease.task);
    out->set_problem_id(lease.problem_id);
    out->set_seed(lease.seed);
    out->set_group_size(lease.group_size);
    for (const uint32_t index : lease.missing) out->add_missing(index);
    out->set_min_version(lease.min_version);
    out->set_deadline_unix_ms(absl::ToUnixMillis(lease.deadline));
  }
}

// Each owns itself until OnDone; the core's reply and this method hold it besides.
class LeaseReactor final : public grpc::ServerUnaryReactor {
 public:
  static LeaseReactor* Start(BufferCore* core, const v1::LeaseRequest& request,
                             v1::LeaseReply* reply) {
    std::shared_ptr<LeaseReactor> reactor(new LeaseReactor(core));
    reactor->self_ = reactor;
    const BufferCore::WaitId id =
        core->Lease(request.server(), request.max_groups(), absl::Milliseconds(request.wait_ms()),
                    [reactor, reply](absl::StatusOr<LeaseResult> result) {
                      if (result.ok()) FillLeases(*result, reply);
                      reactor->Finish(ToGrpc(result.status()));
                    });
    reactor->wait_.Set(id);
    return reactor.get();
  }

 private:
  explicit LeaseReactor(BufferCore* core) : wait_(core) {}
  void OnCancel() override { wait_.Cancel(); }
  void OnDone() override { const std::shared_ptr<LeaseReactor> last = std::move(self_); }

  WaitHandle wait_;
  std::shared_ptr<LeaseReactor> self_;
};

class BatchReactor final : public grpc::ServerWriteReactor<v1::BatchPart> {
 public:
  static BatchReactor* Start(BufferCore* core, const v1::NextBatchRequest& request) {
    std::shared_ptr<BatchReactor> reactor(new BatchReactor(core));
    reactor->self_ = reactor;
    const BufferCore::WaitId id = core->NextBatch(
        request.step(), request.version(), absl::Milliseconds(request.wait_ms()),
        [reactor](absl::StatusOr<BatchPlan> plan) { reactor->OnPlan(std::move(plan)); });
    reactor->wait_.Set(id);
    return reactor.get();
  }

 private:
  explicit BatchReactor(BufferCore* core) : core_(core), wait_(core) {}

  void OnPlan(absl::StatusOr<BatchPlan> plan) {
    if (!plan.ok()) {
      Finish(ToGrpc(plan.status()));
      return;
    }
    plan_ = *std::move(plan);
    WriteNext();
  }

  // One group is read and sent at a time, so a large batch needs the memory of one group.
  void WriteNext() {
    part_.Clear();
    if (next_ == plan_.groups.size()) {
      ended_ = true;
      v1::BatchEnd* end = part_.mutable_end();
      end->set_groups(static_cast<uint32_t>(plan_.groups.size()));
      for (const auto& [reason, count] : plan_.dropped) (*end->mutable_dropped())[reason] = count;
      end->set_waiting_for(plan_.waiting_for);
    } else {
      const uint64_t group_id = plan_.groups[next_++];
      absl::StatusOr<std::vector<Trajectory>> trajectories = core_->ReadGroup(group_id);
      if (!trajectories.ok()) {
        Finish(ToGrpc(trajectories.status()));
        return;
      }
      v1::BatchGroup* group = part_.mutable_group();
      group->set_group_id(group_id);
      for (const Trajectory& t : *trajectories) ToProto(t, group->add_trajectories());
    }
    StartWrite(&part_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client went away"));
    } else if (ended_) {
      Finish(grpc::Status::OK);
    } else {
      WriteNext();
    }
  }
  void OnCancel() override { wait_.Cancel(); }
  void OnDone() override { const std::shared_ptr<BatchReactor> last = std::move(self_); }

  BufferCore* const core_;
  WaitHandle wait_;
  std::shared_ptr<BatchReactor> self_;
  BatchPlan plan_;
  size_t next_ = 0;
  bool ended_ = false;
  v1::BatchPart part_;
};

template <typename Leases>
std::vector<LeaseName> NamesOf(const Leases& leases) {
  std::vector<LeaseName> names;
  for (const v1::LeaseName& lease : leases) names.push_back({lease.group_id(), lease.attempt()});
  return names;
}

}  // namespace

grpc::ServerUnaryReactor* BufferService::Lease(grpc::CallbackServerContext* context,
                                               const v1::LeaseRequest* request,
                                               v1::LeaseReply* reply) {
  if (request->run() != core_->run()) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpc(absl::FailedPreconditionError(
        absl::StrCat("server \"", request->server(), "\" is of run \"", request->run(),
                     "\", this buffer serves run \"", core_->run(), "\""))));
    return reactor;
  }
  core_->Arrive(request->server(), request->instance());
  return LeaseReactor::Start(core_, *request, reply);
}

grpc::ServerUnaryReactor* BufferService::Renew(grpc::CallbackServerContext* context,
                                               const v1::RenewRequest* request,
                                               v1::RenewReply* reply) {
  const RenewResult result = core_->Renew(request->server(), NamesOf(request->leases()));
  for (const LeaseName& lease : result.lost) {
    v1::LeaseName* out = reply->add_lost();
    out->set_group_id(lease.group_id);
    out->set_attempt(lease.attempt);
  }
  reply->set_deadline_unix_ms(absl::ToUnixMillis(result.deadline));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* BufferService::Release(grpc::CallbackServerContext* context,
                                                 const v1::ReleaseRequest* request,
                                                 v1::ReleaseReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  core_->Arrive(request->server(), request->instance());
  core_->Release(request->server(), NamesOf(request->leases()),
                 [reactor](const absl::Status& status) { reactor->Finish(ToGrpc(status)); });
  return reactor;
}

grpc::ServerBidiReactor<v1::PushRequest, v1::PushReply>* BufferService::Push(
    grpc::CallbackServerContext* context) {
  return PushReactor::Start(core_, options_);
}

grpc::ServerWriteReactor<v1::BatchPart>* BufferService::NextBatch(
    grpc::CallbackServerContext* context, const v1::NextBatchRequest* request) {
  return BatchReactor::Start(core_, *request);
}

grpc::ServerUnaryReactor* BufferService::Commit(grpc::CallbackServerContext* context,
                                                const v1::CommitRequest* request,
                                                v1::CommitReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  core_->Commit(request->step(), [reactor, reply](absl::StatusOr<uint64_t> groups) {
    if (groups.ok()) reply->set_committed_groups(*groups);
    reactor->Finish(ToGrpc(groups.status()));
  });
  return reactor;
}

grpc::ServerUnaryReactor* BufferService::Rewind(grpc::CallbackServerContext* context,
                                                const v1::RewindRequest* request,
                                                v1::RewindReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  core_->Rewind(request->step(), [reactor, reply](absl::StatusOr<RewindResult> result) {
    if (result.ok()) {
      reply->set_returned_groups(result->returned_groups);
      reply->set_committed_step(result->committed_step);
      reply->set_last_version(result->last_version);
    }
    reactor->Finish(ToGrpc(result.status()));
  });
  return reactor;
}

grpc::ServerUnaryReactor* BufferService::SetVersion(grpc::CallbackServerContext* context,
                                                    const v1::SetVersionRequest* request,
                                                    v1::SetVersionReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  core_->SetVersion(request->version(), request->finished(),
                    [reactor](const absl::Status& status) { reactor->Finish(ToGrpc(status)); });
  return reactor;
}

grpc::ServerUnaryReactor* BufferService::Stats(grpc::CallbackServerContext* context,
                                               const v1::StatsRequest* request,
                                               v1::StatsReply* reply) {
  const BufferStats stats = core_->Stats();
  reply->set_leased_groups(stats.leased_groups);
  reply->set_ready_groups(stats.ready_groups);
  reply->set_assigned_groups(stats.assigned_groups);
  reply->set_committed_groups(stats.committed_groups);
  for (const auto& [reason, count] : stats.dropped_groups) {
    (*reply->mutable_dropped_groups())[reason] = count;
  }
  reply->set_stored_trajectories(stats.stored_trajectories);
  reply->set_duplicate_pushes(stats.duplicate_pushes);
  reply->set_refused_pushes(stats.refused_pushes);
  reply->set_expired_leases(stats.expired_leases);
  reply->set_generated_tokens(stats.generated_tokens);
  reply->set_dropped_tokens(stats.dropped_tokens);
  reply->set_expected_drop_rate(stats.expected_drop_rate);
  reply->set_admission_window_groups(stats.admission_window_groups);
  reply->set_version(stats.version);
  reply->set_run(stats.run);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace millrace
