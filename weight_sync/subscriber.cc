#include "weight_sync/subscriber.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/backoff.h"
#include "common/clock.h"
#include "common/net_util.h"
#include "common/status_macros.h"
#include "spdlog/spdlog.h"
#include "weight_sync/bucket_server.h"
#include "weight_sync/manifest_proto.h"
#include "weight_sync/member_client.h"
#include "weight_sync/membership.h"
#include "weight_sync/same_host_transport.h"
#include "weight_sync/tcp_relay_transport.h"
#include "weight_sync/version_fetcher.h"

namespace millrace {
namespace {

absl::Status CheckOptions(const Subscriber::Options& o) {
  if (o.run.empty() || o.member.empty() || o.publisher.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the subscriber needs a run, a member name and the learner's address; it has '", o.run,
        "', '", o.member, "' and '", o.publisher, "'"));
  }
  return absl::OkStatus();
}

std::vector<std::unique_ptr<Transport>> MakeTransports(const Subscriber::Options& options) {
  std::vector<std::unique_ptr<Transport>> transports;
  if (options.same_host) {
    SameHostTransport::Options same_host{options.run, options.token, options.source_patience};
    transports.push_back(std::make_unique<SameHostTransport>(same_host));
  }
  TcpRelayTransport::Options tcp;
  tcp.run = options.run;
  tcp.token = options.token;
  tcp.patience = options.source_patience;
  transports.push_back(std::make_unique<TcpRelayTransport>(tcp));
  return transports;
}

}  // namespace

struct Subscriber::Impl {
  Options options;
  Gauge* active_gauge = nullptr;
  Counter* failures_metric = nullptr;
  Counter* joins_metric = nullptr;
  std::unique_ptr<BucketServer> server;
  std::unique_ptr<MemberClient> client;
  std::unique_ptr<VersionFetcher> fetcher;
  std::thread main_thread;
  std::thread heartbeat_thread;

  mutable absl::Mutex mu;
  bool stopping ABSL_GUARDED_BY(mu) = false;
  bool finished ABSL_GUARDED_BY(mu) = false;
  int64_t active_version ABSL_GUARDED_BY(mu) = -1;
  uint64_t member_id ABSL_GUARDED_BY(mu) = 0;  // 0: not a member
  absl::Duration heartbeat ABSL_GUARDED_BY(mu) = absl::Seconds(1);
  int64_t offered_version ABSL_GUARDED_BY(mu) = -1;
  SyncStage stage ABSL_GUARDED_BY(mu) = SyncStage::kNone;  // of offered_version
  bool fetching ABSL_GUARDED_BY(mu) = false;
  absl::Time last_contact ABSL_GUARDED_BY(mu);
  absl::Status last_error ABSL_GUARDED_BY(mu);

  void Run();
  void HeartbeatLoop();
  absl::Status JoinLearner();
  absl::Status PollOnce(bool* failed_version);
  absl::Status FetchOffered(const v1::PollReply& reply);
  void ReportStage(SyncStage stage, const std::string& error,
                   const VersionFetcher::Progress& progress);
  void Heard() {
    absl::MutexLock lock(&mu);
    last_contact = Clock::Real()->Now();
  }
  bool WaitUnlessStopping(absl::Duration duration) {
    absl::MutexLock lock(&mu);
    return !Clock::Real()->AwaitWithDeadline(&mu, absl::Condition(&stopping),
                                             Clock::Real()->Now() + duration);
  }
};

absl::Status Subscriber::Impl::JoinLearner() {
  v1::JoinRequest request;
  request.set_run(options.run);
  request.set_member(options.member);
  request.set_control_address(options.control_address);
  request.set_bucket_address(JoinHostPort(options.advertise, server->port()));
  request.set_token(options.token);
  MR_ASSIGN_OR_RETURN(v1::JoinReply reply, client->Join(request));
  joins_metric->Increment();
  absl::MutexLock lock(&mu);
  member_id = reply.member_id();
  heartbeat = absl::Milliseconds(std::max<int64_t>(10, reply.heartbeat_ms()));
  last_contact = Clock::Real()->Now();
  last_error = absl::OkStatus();
  return absl::OkStatus();
}

void Subscriber::Impl::ReportStage(SyncStage reached, const std::string& error,
                                   const VersionFetcher::Progress& progress) {
  v1::ReportRequest request;
  {
    absl::MutexLock lock(&mu);
    stage = reached;
    if (reached == SyncStage::kActivated) {
      active_version = offered_version;
      active_gauge->Set(static_cast<double>(active_version));
    }
    request.set_member_id(member_id);
    request.set_version(offered_version);
  }
  request.set_stage(ToProto(reached));
  request.set_error(error);
  request.set_bytes(progress.bytes);
  request.set_seconds(progress.seconds);
  request.set_dropped(progress.dropped);
  // A report that does not arrive is made up for by the next poll, but for `dropped`: who comes
  // here for the version is sent on at once.
  if (client->Report(request).ok()) Heard();
}

absl::Status Subscriber::Impl::FetchOffered(const v1::PollReply& reply) {
  MR_ASSIGN_OR_RETURN(VersionManifest manifest, FromProto(reply.manifest()));
  if (manifest.run != options.run) {
    return absl::InvalidArgumentError(absl::StrCat("version ", manifest.version, " is of run '",
                                                   manifest.run, "', not '", options.run, "'"));
  }
  VersionFetcher::Offer offer;
  offer.manifest = std::move(manifest);
  for (int i = 0; i < reply.sources_size(); ++i) {
    offer.sources.push_back({reply.sources(i), i + 1 == reply.sources_size()});
  }
  offer.transfer_deadline =
      Clock::Real()->Now() + absl::Milliseconds(int64_t{reply.transfer_deadline_ms()});
  return fetcher->Fetch(offer, [this](SyncStage reached, const VersionFetcher::Progress& progress) {
    ReportStage(reached, "", progress);
  });
}

absl::Status Subscriber::Impl::PollOnce(bool* failed_version) {
  v1::PollRequest request;
  {
    absl::MutexLock lock(&mu);
    request.set_member_id(member_id);
    request.set_have_version(active_version);
    request.set_wait_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(heartbeat)));
  }
  MR_ASSIGN_OR_RETURN(v1::PollReply reply, client->Poll(request));
  Heard();
  {
    absl::MutexLock lock(&mu);
    finished |= reply.finished();
    if (!reply.has_version() || reply.manifest().version() <= active_version) {
      return absl::OkStatus();
    }
    offered_version = reply.manifest().version();
    stage = SyncStage::kNone;
    fetching = true;
  }
  absl::Status status = FetchOffered(reply);
  {
    absl::MutexLock lock(&mu);
    fetching = false;
    if (!absl::IsCancelled(status)) last_error = status;
  }
  if (!status.ok() && !absl::IsCancelled(status)) {
    *failed_version = true;
    failures_metric->Increment();
    spdlog::warn("weight sync: {}", status.ToString());
    ReportStage(SyncStage::kFailed, std::string(status.message()), {});
  }
  return absl::OkStatus();
}

void Subscriber::Impl::Run() {
  Backoff join_backoff({absl::Milliseconds(50), absl::Seconds(2)}, 1);
  Backoff version_backoff({absl::Milliseconds(100), absl::Seconds(5)}, 2);
  bool joined = false;
  while (true) {
    {
      absl::MutexLock lock(&mu);
      if (stopping || finished) return;
    }
    bool failed_version = false;
    absl::Status status = joined ? PollOnce(&failed_version) : JoinLearner();
    if (status.ok()) {
      joined = true;
      join_backoff.Reset();
      if (!failed_version) {
        version_backoff.Reset();
      } else if (!WaitUnlessStopping(version_backoff.Next())) {
        return;
      }
      continue;
    }
    // A learner that does not know us is a new one, or had given us up: join it at once.
    if (absl::IsNotFound(status)) {
      joined = false;
      continue;
    }
    {
      absl::MutexLock lock(&mu);
      if (stopping) return;
      last_error = status;
    }
    if (join_backoff.failures() == 0) spdlog::warn("weight sync: {}", status.ToString());
    if (!WaitUnlessStopping(join_backoff.Next())) return;
  }
}

void Subscriber::Impl::HeartbeatLoop() {
  absl::Duration interval = absl::Seconds(1);
  while (WaitUnlessStopping(interval)) {
    v1::ReportRequest request;
    {
      absl::MutexLock lock(&mu);
      interval = heartbeat;
      if (!fetching || member_id == 0) continue;
      request.set_member_id(member_id);
      request.set_version(offered_version);
      request.set_stage(ToProto(stage));
    }
    if (client->Report(request).ok()) Heard();
  }
}

Subscriber::Subscriber(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<Subscriber>> Subscriber::Start(Options options,
                                                              WeightReceiver* receiver,
                                                              Metrics* metrics) {
  MR_RETURN_IF_ERROR(CheckOptions(options));
  auto impl = std::make_unique<Impl>();
  impl->active_gauge = &metrics->AddGauge("millrace_weight_sync_active_version",
                                          "Version this member serves; -1 before the first.");
  impl->active_gauge->Set(-1);
  impl->failures_metric = &metrics->AddCounter("millrace_weight_sync_failed_versions_total",
                                               "Tries at a version that failed in some stage.");
  impl->joins_metric = &metrics->AddCounter("millrace_weight_sync_joins_total",
                                            "Times this member joined a learner.");
  BucketServer::Options server_options;
  server_options.listen = options.bucket_listen;
  server_options.run = options.run;
  server_options.token = options.token;
  server_options.kind = "peer";
  server_options.same_host = false;
  MR_ASSIGN_OR_RETURN(impl->server, BucketServer::Start(server_options, metrics));
  impl->client = std::make_unique<MemberClient>(options.publisher);
  impl->fetcher = std::make_unique<VersionFetcher>(
      VersionFetcher::Options{options.member, options.activate_deadline}, MakeTransports(options),
      impl->server.get(), receiver, metrics);
  impl->options = std::move(options);
  Impl* raw = impl.get();
  {
    absl::MutexLock lock(&raw->mu);
    raw->last_contact = Clock::Real()->Now();
  }
  raw->main_thread = std::thread([raw] { raw->Run(); });
  raw->heartbeat_thread = std::thread([raw] { raw->HeartbeatLoop(); });
  return std::unique_ptr<Subscriber>(new Subscriber(std::move(impl)));
}

Subscriber::~Subscriber() {
  uint64_t id = 0;
  {
    absl::MutexLock lock(&impl_->mu);
    impl_->stopping = true;
    if (!impl_->finished) id = impl_->member_id;
  }
  impl_->client->Cancel();
  impl_->fetcher->Abort();
  impl_->main_thread.join();
  impl_->heartbeat_thread.join();
  // The learner may be gone; its member timeout then does the same.
  if (id != 0) impl_->client->Leave(id).IgnoreError();
}

int64_t Subscriber::active_version() const {
  absl::MutexLock lock(&impl_->mu);
  return impl_->active_version;
}

bool Subscriber::finished() const {
  absl::MutexLock lock(&impl_->mu);
  return impl_->finished;
}

absl::Status Subscriber::WaitForVersion(int64_t version, absl::Duration timeout) {
  Impl* impl = impl_.get();
  absl::MutexLock lock(&impl->mu);
  auto done = [impl, version]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return impl->active_version >= version || impl->finished || impl->stopping;
  };
  Clock::Real()->AwaitWithDeadline(&impl->mu, absl::Condition(&done),
                                   Clock::Real()->Now() + timeout);
  if (impl->active_version >= version) return absl::OkStatus();
  std::string text = absl::StrCat("member '", impl->options.member, "' waited for version ",
                                  version, "; active is ", impl->active_version, ", offered ",
                                  impl->offered_version, " in stage ", SyncStageName(impl->stage));
  if (!impl->last_error.ok()) absl::StrAppend(&text, "; last error: ", impl->last_error.message());
  if (impl->finished) return absl::CancelledError(absl::StrCat(text, "; the run is over"));
  if (impl->stopping) return absl::CancelledError(text);
  return absl::DeadlineExceededError(
      absl::StrCat(text, "; gave up after ", absl::FormatDuration(timeout)));
}

absl::Status Subscriber::health() const {
  absl::MutexLock lock(&impl_->mu);
  if (absl::IsPermissionDenied(impl_->last_error) ||
      (impl_->member_id == 0 && absl::IsFailedPrecondition(impl_->last_error))) {
    return impl_->last_error;  // the learner refused us; waiting does not cure it
  }
  absl::Duration silent = Clock::Real()->Now() - impl_->last_contact;
  if (silent <= impl_->options.retry_for || impl_->finished) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "the learner at ", impl_->options.publisher, " has been silent for ",
      absl::FormatDuration(absl::Trunc(silent, absl::Milliseconds(100))),
      impl_->last_error.ok() ? "" : absl::StrCat("; last error: ", impl_->last_error.message())));
}

}  // namespace millrace
