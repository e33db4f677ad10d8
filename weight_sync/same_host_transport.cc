#include "weight_sync/same_host_transport.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

// A mapping that goes before its connection does.
std::shared_ptr<VersionBuffer> TieTo(Connection connection,
                                     std::unique_ptr<VersionBuffer> mapping) {
  auto kept = std::make_shared<Connection>(std::move(connection));
  return std::shared_ptr<VersionBuffer>(mapping.release(),
                                        [kept](VersionBuffer* buffer) { delete buffer; });
}

}  // namespace

void SameHostTransport::Abort() {
  aborted_.store(true);
  abort_.Signal();
}

absl::Status SameHostTransport::Pull(const PullRequest& request, PullStats* stats) {
  const SyncSource* source = nullptr;
  for (const SyncSource& s : request.sources) {
    if (absl::StartsWith(s.address, kSameHostPrefix)) source = &s;
  }
  if (source == nullptr) return absl::NotFoundError("no source offers its memory");
  if (aborted_.load()) return absl::CancelledError("the transfer was aborted");
  absl::Duration left = request.deadline - Clock::Real()->Now();
  absl::StatusOr<BucketReader> opened =
      BucketReader::Open(source->address, request.manifest,
                         {options_.run, options_.token,
                          std::clamp(left, absl::Milliseconds(1), options_.patience), abort_.fd()});
  if (!opened.ok()) {
    if (absl::IsCancelled(opened.status())) return opened.status();
    return absl::NotFoundError(
        absl::StrCat("the memory of the learner is out of reach: ", opened.status().message()));
  }
  MR_ASSIGN_OR_RETURN(
      std::unique_ptr<VersionBuffer> mapping,
      VersionBuffer::MapReadOnly(opened->TakeMemory().Release(), request.manifest.total_size));
  // The learner offers whole versions only, so there is nothing to ask for bucket by bucket.
  MR_ASSIGN_OR_RETURN(
      std::shared_ptr<VersionAssembly> assembly,
      request.begin(TieTo((*std::move(opened)).TakeConnection(), std::move(mapping))));
  while (!assembly->complete()) {
    if (aborted_.load()) return absl::CancelledError("the transfer was aborted");
    const size_t bucket = assembly->next_bucket();
    if (Clock::Real()->Now() >= request.deadline) {
      return absl::DeadlineExceededError(absl::StrCat("bucket ", bucket, " of version ",
                                                      request.manifest.version,
                                                      " was not digested by the deadline"));
    }
    const size_t size = assembly->Room().size();
    assembly->Filled(size);
    if (absl::Status digest = assembly->FinishBucket(); !digest.ok()) {
      ++stats->digest_failures;
      return digest;
    }
    stats->bytes_from_learner += size;
  }
  return absl::OkStatus();
}

}  // namespace millrace
