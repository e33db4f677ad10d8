#include "weight_sync/publisher.h"

#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/grpc_util.h"
#include "common/net_util.h"
#include "common/status_macros.h"
#include "weight_sync/bucket_reader.h"
#include "weight_sync/bucket_server.h"
#include "weight_sync/coordinator.h"
#include "weight_sync/manifest_proto.h"
#include "weight_sync/version_writer.h"

namespace millrace {
namespace {

absl::Status CheckOptions(const Publisher::Options& o) {
  if (o.run.empty()) return absl::InvalidArgumentError("the publisher needs the name of the run");
  if (o.heartbeat <= absl::ZeroDuration() || o.member_timeout < 2 * o.heartbeat) {
    return absl::InvalidArgumentError(absl::StrCat(
        "member_timeout is ", absl::FormatDuration(o.member_timeout),
        "; it must be at least twice the heartbeat of ", absl::FormatDuration(o.heartbeat)));
  }
  if (o.transfer_deadline <= absl::ZeroDuration() || o.copy_threads < 1) {
    return absl::InvalidArgumentError("transfer_deadline and copy_threads must be positive");
  }
  return absl::OkStatus();
}

}  // namespace

struct Publisher::Impl {
  Options options;
  Histogram* publish_seconds = nullptr;
  VersionBufferPool pool;
  std::unique_ptr<BucketServer> server;
  std::unique_ptr<Coordinator> coordinator;
  RunningServer grpc;

  absl::Mutex publish_mu;  // one Publish at a time
  mutable absl::Mutex mu;
  int64_t version ABSL_GUARDED_BY(mu) = -1;
};

Publisher::Publisher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<Publisher>> Publisher::Start(const Options& options,
                                                            Metrics* metrics) {
  MR_RETURN_IF_ERROR(CheckOptions(options));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->publish_seconds = &metrics->AddHistogram(
      "millrace_weight_sync_publish_seconds",
      "Seconds to copy, digest and offer a version; the learner waits for it.",
      Metrics::SecondsBuckets());
  BucketServer::Options server_options;
  server_options.listen = options.bucket_listen;
  server_options.run = options.run;
  server_options.token = options.token;
  server_options.kind = "learner";
  server_options.same_host = options.same_host;
  MR_ASSIGN_OR_RETURN(impl->server, BucketServer::Start(server_options, metrics));

  Coordinator::Options coordinator_options;
  coordinator_options.run = options.run;
  coordinator_options.token = options.token;
  coordinator_options.learner_address = JoinHostPort(options.advertise, impl->server->port());
  if (options.same_host) {
    coordinator_options.same_host_address =
        absl::StrCat(kSameHostPrefix, impl->server->same_host_name());
  }
  coordinator_options.transfer_deadline = options.transfer_deadline;
  coordinator_options.heartbeat = options.heartbeat;
  coordinator_options.member_timeout = options.member_timeout;
  BucketServer* server = impl->server.get();
  impl->coordinator = std::make_unique<Coordinator>(
      coordinator_options, metrics,
      [server](const std::set<int64_t>& versions) { server->Retain(versions); });
  MR_ASSIGN_OR_RETURN(impl->grpc, StartGrpcServer(options.listen, {impl->coordinator->service()}));
  return std::unique_ptr<Publisher>(new Publisher(std::move(impl)));
}

Publisher::~Publisher() {
  impl_->coordinator->Shutdown();
  impl_->grpc.server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
  impl_->grpc.server.reset();
}

std::string Publisher::control_address() const {
  return JoinHostPort(impl_->options.advertise, impl_->grpc.port);
}

absl::Status Publisher::Publish(int64_t version, absl::Span<const NamedSpan> tensors) {
  absl::MutexLock publishing(&impl_->publish_mu);
  const absl::Time start = Clock::Real()->Now();
  if (int64_t last = this->version(); version <= last || version < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("version ", version, " must be above the last one, ", last));
  }
  MR_ASSIGN_OR_RETURN(VersionManifest manifest,
                      LayOutManifest(tensors, static_cast<uint64_t>(impl_->options.bucket_bytes)));
  manifest.run = impl_->options.run;
  manifest.version = version;
  // One version in memory where nobody reads, not two.
  if (impl_->coordinator->Withdraw()) impl_->server->Forget(this->version());
  MR_ASSIGN_OR_RETURN(std::shared_ptr<VersionBuffer> buffer, impl_->pool.Take(manifest.total_size));
  WriteVersion(tensors, impl_->options.copy_threads, buffer.get(), &manifest);
  v1::Manifest proto = ToProto(manifest);
  auto bytes = std::make_shared<VersionBytes>(std::move(manifest), std::move(buffer), nullptr);
  bytes->SetReady(bytes->manifest().buckets.size());
  impl_->server->Offer(std::move(bytes));
  {
    absl::MutexLock lock(&impl_->mu);
    impl_->version = version;
  }
  impl_->coordinator->SetVersion(std::move(proto));
  impl_->publish_seconds->Observe(absl::ToDoubleSeconds(Clock::Real()->Now() - start));
  return absl::OkStatus();
}

absl::Status Publisher::WaitActivated(int64_t version, int members, absl::Duration timeout) {
  return impl_->coordinator->WaitActivated(version, members, timeout);
}

std::vector<MemberInfo> Publisher::Members() { return impl_->coordinator->Members(); }

int64_t Publisher::version() const {
  absl::MutexLock lock(&impl_->mu);
  return impl_->version;
}

void Publisher::Finish() { impl_->coordinator->Finish(); }

}  // namespace millrace
