#include "weight_sync/coordinator.h"

#include <algorithm>
#include <random>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/grpc_util.h"
#include "common/status_macros.h"
#include "spdlog/spdlog.h"
#include "weight_sync/manifest_proto.h"
#include "weight_sync/membership.h"
#include "weight_sync/secret.h"

namespace millrace {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

constexpr absl::Duration kTick = absl::Seconds(1);

Membership::Options MembershipOptions(const Coordinator::Options& options) {
  Membership::Options out;
  out.timeout = options.member_timeout;
  out.first_id = (uint64_t{std::random_device()()} << 20) + 1;
  return out;
}

}  // namespace

class Coordinator::Impl : public v1::WeightSync::CallbackService {
 public:
  Impl(Options options, Metrics* metrics, std::function<void(const std::set<int64_t>&)> in_use);
  ~Impl() override { Shutdown(); }

  ServerUnaryReactor* Join(CallbackServerContext* context, const v1::JoinRequest* request,
                           v1::JoinReply* reply) override;
  ServerUnaryReactor* Poll(CallbackServerContext* context, const v1::PollRequest* request,
                           v1::PollReply* reply) override;
  ServerUnaryReactor* Report(CallbackServerContext* context, const v1::ReportRequest* request,
                             v1::ReportReply* reply) override;
  ServerUnaryReactor* Leave(CallbackServerContext* context, const v1::LeaveRequest* request,
                            v1::LeaveReply* reply) override;
  ServerUnaryReactor* Members(CallbackServerContext* context, const v1::MembersRequest* request,
                              v1::MembersReply* reply) override;

  void SetVersion(v1::Manifest manifest);
  bool Withdraw();
  void Finish();
  void Shutdown();
  absl::Status WaitActivated(int64_t version, int members, absl::Duration timeout);
  std::vector<MemberInfo> MemberList();

 private:
  struct Waiting {
    uint64_t member_id;
    int64_t have_version;
    absl::Time deadline;
    v1::PollReply* reply;
    ServerUnaryReactor* reactor;
  };
  using Answers = std::vector<std::pair<ServerUnaryReactor*, absl::Status>>;

  static ServerUnaryReactor* Answer(CallbackServerContext* context, const absl::Status& status) {
    ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpc(status));
    return reactor;
  }
  static void Send(const Answers& answers) {
    for (const auto& [reactor, status] : answers) reactor->Finish(ToGrpc(status));
  }
  absl::StatusOr<uint64_t> TryJoin(const v1::JoinRequest& request);
  // Whether the poll can be answered now; fills the reply.
  bool TryAnswer(const Waiting& poll, absl::Time now, Answers* answers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AnswerWaiting(absl::Time now, Answers* answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FillOffer(uint64_t member_id, absl::Time now, v1::PollReply* reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FillMembers(absl::Time now, v1::MembersReply* reply) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int CountActive(int64_t version) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UpdateGauges() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellVersionsInUse() ABSL_LOCKS_EXCLUDED(mu_);
  void Tick();

  const Options options_;
  const std::function<void(const std::set<int64_t>&)> on_versions_in_use_;
  Gauge& members_gauge_;
  Gauge& lag_gauge_;
  Gauge& version_gauge_;
  Counter& failures_metric_;
  Counter& removed_metric_;

  absl::Mutex mu_;
  Membership membership_ ABSL_GUARDED_BY(mu_);
  v1::Manifest newest_ ABSL_GUARDED_BY(mu_);
  bool has_version_ ABSL_GUARDED_BY(mu_) = false;
  bool withdrawn_ ABSL_GUARDED_BY(mu_) = false;  // newest_ is not offered any more
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  std::thread ticker_;
};

Coordinator::Impl::Impl(Options options, Metrics* metrics,
                        std::function<void(const std::set<int64_t>&)> in_use)
    : options_(std::move(options)),
      on_versions_in_use_(std::move(in_use)),
      members_gauge_(metrics->AddGauge("millrace_weight_sync_members", "Members of weight sync.")),
      lag_gauge_(metrics->AddGauge("millrace_weight_sync_version_lag",
                                   "Newest version less the oldest active one of a member.")),
      version_gauge_(metrics->AddGauge("millrace_weight_sync_published_version",
                                       "Newest version published; -1 before the first.")),
      failures_metric_(metrics->AddCounter("millrace_weight_sync_member_failures_total",
                                           "Versions that a member reported as failed.")),
      removed_metric_(metrics->AddCounter("millrace_weight_sync_members_removed_total",
                                          "Members removed because they were silent.")),
      membership_(MembershipOptions(options_)) {
  version_gauge_.Set(-1);
  ticker_ = std::thread([this] { Tick(); });
}

absl::StatusOr<uint64_t> Coordinator::Impl::TryJoin(const v1::JoinRequest& request) {
  if (!SameSecret(request.token(), options_.token)) {
    return absl::PermissionDeniedError(
        absl::StrCat("member '", request.member(), "' has the wrong weight_sync.token"));
  }
  if (request.run() != options_.run) {
    return absl::FailedPreconditionError(
        absl::StrCat("member '", request.member(), "' belongs to run '", request.run(),
                     "'; this learner's run is '", options_.run, "'"));
  }
  absl::MutexLock lock(&mu_);
  absl::StatusOr<uint64_t> id =
      membership_.Join({request.member(), request.control_address(), request.bucket_address()},
                       Clock::Real()->Now());
  UpdateGauges();
  return id;
}

ServerUnaryReactor* Coordinator::Impl::Join(CallbackServerContext* context,
                                            const v1::JoinRequest* request, v1::JoinReply* reply) {
  absl::StatusOr<uint64_t> id = TryJoin(*request);
  if (!id.ok()) return Answer(context, id.status());
  {
    absl::MutexLock lock(&mu_);
    reply->set_epoch(membership_.epoch());
  }
  reply->set_member_id(*id);
  reply->set_heartbeat_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.heartbeat)));
  spdlog::info("weight sync: member '{}' joined, buckets at {}", request->member(),
               request->bucket_address());
  return Answer(context, absl::OkStatus());
}

void Coordinator::Impl::FillOffer(uint64_t member_id, absl::Time now, v1::PollReply* reply) {
  const int64_t version = newest_.version();
  std::vector<std::string> before;
  for (const Membership::Member* m : membership_.Chain(version, now)) {
    if (m->id != member_id) before.push_back(m->bucket_address);
  }
  membership_.Offer(member_id, version, now).IgnoreError();  // its id was checked under this lock
  reply->set_has_version(true);
  *reply->mutable_manifest() = newest_;
  if (!options_.same_host_address.empty()) reply->add_sources(options_.same_host_address);
  for (const std::string& s : PlanSources(before, options_.learner_address, options_.relay_peers)) {
    reply->add_sources(s);
  }
  reply->set_transfer_deadline_ms(
      static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.transfer_deadline)));
}

bool Coordinator::Impl::TryAnswer(const Waiting& poll, absl::Time now, Answers* answers) {
  absl::Status status;
  if (stopping_) {
    status = absl::UnavailableError("the learner is shutting down");
  } else if (finished_) {
    poll.reply->set_finished(true);
  } else if (absl::Status known = membership_.Heartbeat(poll.member_id, poll.have_version, now);
             !known.ok()) {
    status = known;
  } else if (has_version_ && !withdrawn_ && newest_.version() > poll.have_version) {
    FillOffer(poll.member_id, now, poll.reply);
  } else if (now < poll.deadline) {
    return false;
  }
  answers->push_back({poll.reactor, status});
  return true;
}

void Coordinator::Impl::AnswerWaiting(absl::Time now, Answers* answers) {
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(),
                                [&](const Waiting& poll) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                                  return TryAnswer(poll, now, answers);
                                }),
                 waiting_.end());
}

ServerUnaryReactor* Coordinator::Impl::Poll(CallbackServerContext* context,
                                            const v1::PollRequest* request, v1::PollReply* reply) {
  ServerUnaryReactor* reactor = context->DefaultReactor();
  Answers answers;
  {
    absl::MutexLock lock(&mu_);
    absl::Time now = Clock::Real()->Now();
    // One poll a member: a second one means that the first was given up.
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (it->member_id != request->member_id()) {
        ++it;
        continue;
      }
      answers.push_back({it->reactor, absl::AbortedError("another poll came for this member")});
      it = waiting_.erase(it);
    }
    // A waiting poll is heard of when it is answered, so it must not outlast the member.
    const absl::Duration wait =
        std::min(absl::Milliseconds(int64_t{request->wait_ms()}), options_.member_timeout / 2);
    Waiting poll{request->member_id(), request->have_version(), now + wait, reply, reactor};
    if (!TryAnswer(poll, now, &answers)) waiting_.push_back(poll);
    UpdateGauges();
  }
  Send(answers);
  return reactor;
}

ServerUnaryReactor* Coordinator::Impl::Report(CallbackServerContext* context,
                                              const v1::ReportRequest* request,
                                              v1::ReportReply* reply) {
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    SyncStage stage = FromProto(request->stage());
    status = membership_.Report(request->member_id(), request->version(), stage, request->error(),
                                Clock::Real()->Now());
    auto it = membership_.members().find(request->member_id());
    if (request->dropped()) membership_.Dropped(request->member_id(), request->version());
    if (status.ok() && stage == SyncStage::kFailed && it != membership_.members().end()) {
      failures_metric_.Increment();
      spdlog::warn("weight sync: member '{}' failed version {}: {}", it->second.name,
                   request->version(), request->error());
    }
    UpdateGauges();
  }
  TellVersionsInUse();
  return Answer(context, status);
}

ServerUnaryReactor* Coordinator::Impl::Leave(CallbackServerContext* context,
                                             const v1::LeaveRequest* request,
                                             v1::LeaveReply* reply) {
  absl::Status status;
  {
    absl::MutexLock lock(&mu_);
    status = membership_.Leave(request->member_id());
    UpdateGauges();
  }
  TellVersionsInUse();
  return Answer(context, status);
}

ServerUnaryReactor* Coordinator::Impl::Members(CallbackServerContext* context,
                                               const v1::MembersRequest* request,
                                               v1::MembersReply* reply) {
  {
    absl::MutexLock lock(&mu_);
    FillMembers(Clock::Real()->Now(), reply);
  }
  return Answer(context, absl::OkStatus());
}

void Coordinator::Impl::FillMembers(absl::Time now, v1::MembersReply* reply) const {
  reply->set_epoch(membership_.epoch());
  reply->set_version(has_version_ ? newest_.version() : -1);
  for (const auto& [id, m] : membership_.members()) {
    v1::MemberState* state = reply->add_members();
    state->set_member(m.name);
    state->set_control_address(m.control_address);
    state->set_active_version(m.active_version);
    state->set_stage(ToProto(m.stage));
    state->set_last_error(m.last_error);
    state->set_seconds_since_heard(absl::ToDoubleSeconds(now - m.last_heard));
  }
}

void Coordinator::Impl::SetVersion(v1::Manifest manifest) {
  Answers answers;
  {
    absl::MutexLock lock(&mu_);
    newest_ = std::move(manifest);
    has_version_ = true;
    withdrawn_ = false;
    version_gauge_.Set(static_cast<double>(newest_.version()));
    AnswerWaiting(Clock::Real()->Now(), &answers);
    UpdateGauges();
  }
  Send(answers);
  TellVersionsInUse();
}

bool Coordinator::Impl::Withdraw() {
  absl::MutexLock lock(&mu_);
  if (membership_.VersionsInUse().count(newest_.version()) > 0) return false;
  withdrawn_ = true;
  return true;
}

void Coordinator::Impl::Finish() {
  Answers answers;
  {
    absl::MutexLock lock(&mu_);
    finished_ = true;
    AnswerWaiting(Clock::Real()->Now(), &answers);
  }
  Send(answers);
}

void Coordinator::Impl::Shutdown() {
  Answers answers;
  {
    absl::MutexLock lock(&mu_);
    if (stopping_) return;
    stopping_ = true;
    AnswerWaiting(Clock::Real()->Now(), &answers);
  }
  Send(answers);
  ticker_.join();
}

void Coordinator::Impl::Tick() {
  while (true) {
    Answers answers;
    std::vector<std::string> removed;
    {
      absl::MutexLock lock(&mu_);
      absl::Time now = Clock::Real()->Now();
      absl::Time next = now + kTick;
      for (const Waiting& poll : waiting_) next = std::min(next, poll.deadline);
      if (Clock::Real()->AwaitWithDeadline(&mu_, absl::Condition(&stopping_), next)) return;
      now = Clock::Real()->Now();
      removed = membership_.Expire(now);
      AnswerWaiting(now, &answers);
      UpdateGauges();
    }
    Send(answers);
    for (const std::string& name : removed) {
      removed_metric_.Increment();
      spdlog::warn("weight sync: member '{}' was silent for {} and is removed", name,
                   absl::FormatDuration(options_.member_timeout));
    }
    if (!removed.empty()) TellVersionsInUse();
  }
}

void Coordinator::Impl::UpdateGauges() {
  members_gauge_.Set(static_cast<double>(membership_.members().size()));
  int64_t lag = 0;
  for (const auto& [id, m] : membership_.members()) {
    if (has_version_) lag = std::max(lag, newest_.version() - m.active_version);
  }
  lag_gauge_.Set(static_cast<double>(lag));
}

void Coordinator::Impl::TellVersionsInUse() {
  std::set<int64_t> versions;
  {
    absl::MutexLock lock(&mu_);
    versions = membership_.VersionsInUse();
    if (has_version_) versions.insert(newest_.version());
  }
  on_versions_in_use_(versions);
}

int Coordinator::Impl::CountActive(int64_t version) const {
  int active = 0;
  for (const auto& [id, m] : membership_.members()) active += m.active_version >= version;
  return active;
}

absl::Status Coordinator::Impl::WaitActivated(int64_t version, int members,
                                              absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  auto done = [this, version, members]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return stopping_ || CountActive(version) >= members;
  };
  Clock::Real()->AwaitWithDeadline(&mu_, absl::Condition(&done), Clock::Real()->Now() + timeout);
  const int active = CountActive(version);
  if (active >= members) return absl::OkStatus();
  if (stopping_) return absl::CancelledError("the publisher is shutting down");
  std::vector<std::string> late;
  for (const auto& [id, m] : membership_.members()) {
    if (m.active_version >= version) continue;
    late.push_back(absl::StrCat(
        "'", m.name, "' has ", m.active_version, ", stage ", SyncStageName(m.stage), " of ",
        m.offered_version, ", heard ",
        absl::FormatDuration(
            absl::Trunc(Clock::Real()->Now() - m.last_heard, absl::Milliseconds(1))),
        " ago", m.last_error.empty() ? "" : absl::StrCat(", last error: ", m.last_error)));
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "the learner waited ", absl::FormatDuration(timeout), " for ", members,
      " members to activate version ", version, "; ", active, " did of ",
      membership_.members().size(), late.empty() ? "" : ": ", absl::StrJoin(late, "; ")));
}

std::vector<MemberInfo> Coordinator::Impl::MemberList() {
  absl::MutexLock lock(&mu_);
  absl::Time now = Clock::Real()->Now();
  std::vector<MemberInfo> list;
  for (const auto& [id, m] : membership_.members()) {
    list.push_back(
        {m.name, m.control_address, m.active_version, m.stage, m.last_error, now - m.last_heard});
  }
  return list;
}

Coordinator::Coordinator(Options options, Metrics* metrics,
                         std::function<void(const std::set<int64_t>&)> on_versions_in_use)
    : impl_(std::make_unique<Impl>(std::move(options), metrics, std::move(on_versions_in_use))) {}
Coordinator::~Coordinator() = default;
grpc::Service* Coordinator::service() { return impl_.get(); }
void Coordinator::SetVersion(v1::Manifest manifest) { impl_->SetVersion(std::move(manifest)); }
bool Coordinator::Withdraw() { return impl_->Withdraw(); }
void Coordinator::Finish() { impl_->Finish(); }
void Coordinator::Shutdown() { impl_->Shutdown(); }
absl::Status Coordinator::WaitActivated(int64_t version, int members, absl::Duration timeout) {
  return impl_->WaitActivated(version, members, timeout);
}
std::vector<MemberInfo> Coordinator::Members() { return impl_->MemberList(); }

}  // namespace millrace
