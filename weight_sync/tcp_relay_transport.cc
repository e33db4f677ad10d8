#include "weight_sync/tcp_relay_transport.h"

#include <poll.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/backoff.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

// The largest piece read at once: it is still in the cache when it is digested.
constexpr size_t kReadPiece = 512 << 10;

// Waits until `deadline` or until `fd` becomes readable.
void WaitReadable(int fd, absl::Time deadline) {
  pollfd wait{fd, POLLIN, 0};
  poll(&wait, 1, PollMillis(deadline, Clock::Real()->Now()));
}

}  // namespace

void TcpRelayTransport::Abort() {
  aborted_.store(true);
  abort_.Signal();
}

absl::Status TcpRelayTransport::FetchBucket(BucketReader* reader, const PullRequest& request,
                                            VersionAssembly* assembly, uint64_t* bytes) {
  MR_RETURN_IF_ERROR(reader->ReadReply(static_cast<uint32_t>(assembly->next_bucket())));
  for (auto room = assembly->Room(); !room.empty(); room = assembly->Room()) {
    if (Clock::Real()->Now() >= request.deadline) {
      return absl::DeadlineExceededError("the deadline of the transfer passed");
    }
    MR_ASSIGN_OR_RETURN(size_t got,
                        reader->ReadSome(room.first(std::min(kReadPiece, room.size()))));
    assembly->Filled(got);
    *bytes += got;
  }
  return absl::OkStatus();
}

absl::Status TcpRelayTransport::PullFrom(const SyncSource& source, const PullRequest& request,
                                         VersionAssembly* assembly, PullStats* stats) {
  absl::Duration left = request.deadline - Clock::Real()->Now();
  BucketReader::Options reader_options{options_.run, options_.token,
                                       std::clamp(left, absl::Milliseconds(1), options_.patience),
                                       abort_.fd()};
  MR_ASSIGN_OR_RETURN(BucketReader reader,
                      BucketReader::Open(source.address, request.manifest, reader_options));
  uint64_t* bytes = source.learner ? &stats->bytes_from_learner : &stats->bytes_from_peers;
  const size_t count = request.manifest.buckets.size();
  size_t asked = assembly->next_bucket();
  int retries = 0;
  while (!assembly->complete()) {
    for (; asked < count && asked < assembly->next_bucket() + options_.requests_ahead; ++asked) {
      MR_RETURN_IF_ERROR(reader.Request(static_cast<uint32_t>(asked)));
    }
    MR_RETURN_IF_ERROR(FetchBucket(&reader, request, assembly, bytes));
    absl::Status digest = assembly->FinishBucket();
    if (digest.ok()) {
      retries = 0;
      continue;
    }
    ++stats->digest_failures;
    if (retries++ >= options_.bucket_retries) return digest;
    // The requests ahead are still under way, so the bucket is asked for on a new connection.
    MR_ASSIGN_OR_RETURN(reader,
                        BucketReader::Open(source.address, request.manifest, reader_options));
    asked = assembly->next_bucket();
  }
  return absl::OkStatus();
}

absl::Status TcpRelayTransport::Pull(const PullRequest& request, PullStats* stats) {
  std::vector<SyncSource> sources;
  for (const SyncSource& s : request.sources) {
    if (!absl::StartsWith(s.address, kSameHostPrefix)) sources.push_back(s);
  }
  if (sources.empty()) return absl::NotFoundError("no source speaks TCP");
  MR_ASSIGN_OR_RETURN(std::shared_ptr<VersionAssembly> assembly, request.begin(nullptr));
  Backoff backoff({absl::Milliseconds(50), absl::Seconds(1)}, 1);
  std::vector<std::string> failures;
  for (int round = 0; round < options_.last_retries; ++round) {
    if (round > 0) {
      WaitReadable(abort_.fd(), std::min(request.deadline, Clock::Real()->Now() + backoff.Next()));
    }
    for (const SyncSource& source : sources) {
      if (aborted_.load()) return absl::CancelledError("the transfer was aborted");
      if (Clock::Real()->Now() >= request.deadline) break;
      absl::Status status = PullFrom(source, request, assembly.get(), stats);
      if (status.ok()) return status;
      if (absl::IsCancelled(status)) return status;
      assembly->RestartBucket();
      ++stats->source_failures;
      failures.push_back(absl::StrCat(source.learner ? "learner " : "peer ", source.address, ": ",
                                      status.message()));
    }
  }
  std::string message = absl::StrCat(
      "bucket ", assembly->next_bucket(), " of ", request.manifest.buckets.size(), " of version ",
      request.manifest.version,
      " did not come: ", failures.empty() ? "no time was left" : absl::StrJoin(failures, "; "));
  return Clock::Real()->Now() >= request.deadline ? absl::DeadlineExceededError(message)
                                                  : absl::UnavailableError(message);
}

}  // namespace millrace
