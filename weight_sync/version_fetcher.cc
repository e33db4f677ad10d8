#include "weight_sync/version_fetcher.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace millrace {

VersionFetcher::VersionFetcher(Options options, std::vector<std::unique_ptr<Transport>> transports,
                               BucketServer* server, WeightReceiver* receiver, Metrics* metrics)
    : options_(std::move(options)),
      transports_(std::move(transports)),
      server_(server),
      receiver_(receiver),
      metrics_(metrics) {}

void VersionFetcher::Abort() {
  for (const auto& transport : transports_) transport->Abort();
}

absl::Status VersionFetcher::Staged(const char* stage, int64_t version,
                                    const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("member '", options_.member, "', ", stage,
                                                  " of version ", version, ": ", status.message()));
}

void VersionFetcher::Count(const Transport& transport, const PullStats& stats) {
  auto bytes = [&](const std::string& source, uint64_t count) {
    metrics_
        ->AddCounter(
            "millrace_weight_sync_bytes_total",
            "Weight bytes moved, by direction and kind of source.",
            {{"direction", "received"}, {"source", source}, {"transport", transport.name()}})
        .Increment(static_cast<double>(count));
  };
  bytes("learner", stats.bytes_from_learner);
  bytes("peer", stats.bytes_from_peers);
  metrics_
      ->AddCounter("millrace_weight_sync_digest_failures_total",
                   "Buckets that arrived with a wrong digest.")
      .Increment(stats.digest_failures);
  metrics_
      ->AddCounter("millrace_weight_sync_source_failures_total",
                   "Times a source was left for the next one.")
      .Increment(stats.source_failures);
}

absl::Status VersionFetcher::TransferBy(Transport* transport, const Offer& offer,
                                        Progress* progress,
                                        std::shared_ptr<VersionAssembly>* assembly) {
  const absl::Time start = Clock::Real()->Now();
  PullRequest request;
  request.manifest = offer.manifest;
  request.sources = offer.sources;
  request.deadline = offer.transfer_deadline;
  request.begin = [&](std::shared_ptr<VersionBuffer> buffer)
      -> absl::StatusOr<std::shared_ptr<VersionAssembly>> {
    if (buffer == nullptr) {
      MR_ASSIGN_OR_RETURN(buffer, pool_.Take(offer.manifest.total_size));
    }
    auto bytes = std::make_shared<VersionBytes>(offer.manifest, std::move(buffer),
                                                [server = server_] { server->Wake(); });
    server_->Offer(bytes);  // others may fetch what has arrived from now on
    *assembly = std::make_shared<VersionAssembly>(std::move(bytes));
    return *assembly;
  };
  PullStats stats;
  absl::Status status = transport->Pull(request, &stats);
  progress->bytes += stats.bytes_from_learner + stats.bytes_from_peers;
  Count(*transport, stats);
  if (status.ok()) {
    metrics_
        ->AddHistogram("millrace_weight_sync_transfer_seconds",
                       "Seconds from the first request to the last bucket of a version.",
                       Metrics::SecondsBuckets(), {{"transport", transport->name()}})
        .Observe(absl::ToDoubleSeconds(Clock::Real()->Now() - start));
  } else if (*assembly != nullptr) {
    (*assembly)->bytes()->SetFailed();
    assembly->reset();
  }
  return status;
}

absl::Status VersionFetcher::Transfer(const Offer& offer, Progress* progress,
                                      std::shared_ptr<VersionAssembly>* assembly) {
  absl::Status last = absl::NotFoundError("there is no transport");
  for (const auto& transport : transports_) {
    absl::Status status = TransferBy(transport.get(), offer, progress, assembly);
    if (status.ok() || absl::IsCancelled(status)) return status;
    // What a transport that did come to something says is worth more than "out of reach".
    if (!absl::IsNotFound(status) || absl::IsNotFound(last)) last = status;
  }
  return last;
}

absl::Status VersionFetcher::Fetch(const Offer& offer, const OnStage& on_stage) {
  const int64_t version = offer.manifest.version;
  const absl::Time start = Clock::Real()->Now();
  absl::Time stage_start = start;
  Progress progress;
  auto reached = [&](SyncStage stage, const char* name) {
    const absl::Time now = Clock::Real()->Now();
    metrics_
        ->AddHistogram("millrace_weight_sync_stage_seconds", "Seconds spent in a stage.",
                       Metrics::SecondsBuckets(), {{"stage", name}})
        .Observe(absl::ToDoubleSeconds(now - stage_start));
    stage_start = now;
    progress.seconds = absl::ToDoubleSeconds(now - start);
    on_stage(stage, progress);
  };

  MR_RETURN_IF_ERROR(
      Staged("prepare", version, receiver_->Prepare(version, SpansOver(offer.manifest, nullptr))));
  reached(SyncStage::kPrepared, "prepare");

  std::shared_ptr<VersionAssembly> assembly;
  // The learner's own memory goes back to it, whatever comes of it here, so that it can write the
  // next version there. Others reach the learner as well as this host.
  absl::Cleanup give_back = [&] {
    progress.dropped = assembly != nullptr && !assembly->bytes()->buffer().writable();
    if (progress.dropped) server_->Forget(version);
    assembly.reset();
  };
  MR_RETURN_IF_ERROR(Staged("transfer", version, Transfer(offer, &progress, &assembly)));
  reached(SyncStage::kTransferred, "transfer");

  if (absl::Status tensors = assembly->VerifyTensors(); !tensors.ok()) {
    assembly->bytes()->SetFailed();
    return Staged("verify", version, tensors);
  }
  reached(SyncStage::kVerified, "verify");

  const VersionBuffer& buffer = assembly->bytes()->buffer();
  absl::Status activated = receiver_->Activate(version, SpansOver(offer.manifest, buffer.data()),
                                               Clock::Real()->Now() + options_.activate_deadline);
  MR_RETURN_IF_ERROR(Staged("activate", version, activated));
  server_->Retain({version});
  std::move(give_back).Invoke();  // before the learner hears of it
  reached(SyncStage::kActivated, "activate");
  return absl::OkStatus();
}

}  // namespace millrace
