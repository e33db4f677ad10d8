#include "weight_sync/nccl_transport.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

constexpr absl::Duration kPollInterval = absl::Microseconds(100);
constexpr size_t kUniqueIdBytes = 128;

size_t LargestBucket(const VersionManifest& manifest) {
  uint64_t largest = 0;
  for (const BucketMeta& b : manifest.buckets) largest = std::max(largest, b.size);
  return largest;
}

}  // namespace

std::string FormatNcclPlace(const NcclPlace& place) {
  return absl::StrCat(kNcclPrefix, place.rank, "/", place.ranks, ":",
                      absl::BytesToHexString(place.unique_id));
}

absl::StatusOr<NcclPlace> ParseNcclPlace(const std::string& address) {
  NcclPlace place;
  std::vector<std::string> parts = absl::StrSplit(address, ':');
  std::vector<std::string> numbers =
      absl::StrSplit(parts.size() == 3 ? parts[1] : std::string(), '/');
  if (parts.size() != 3 || parts[0] != "nccl" || numbers.size() != 2 ||
      !absl::SimpleAtoi(numbers[0], &place.rank) || !absl::SimpleAtoi(numbers[1], &place.ranks) ||
      place.rank < 0 || place.rank >= place.ranks || parts[2].size() != 2 * kUniqueIdBytes ||
      !std::all_of(parts[2].begin(), parts[2].end(),
                   [](unsigned char c) { return absl::ascii_isxdigit(c); })) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", address, "' is not nccl:RANK/RANKS:HEXID with an id of ", kUniqueIdBytes, " bytes"));
  }
  place.unique_id = absl::HexStringToBytes(parts[2]);
  return place;
}

NcclRank::NcclRank(std::unique_ptr<NcclApi> api, NcclPlace place, Clock* clock)
    : api_(std::move(api)), place_(std::move(place)), clock_(clock) {}

void NcclRank::Abort() {
  absl::MutexLock lock(&mu_);
  aborted_ = true;
}

absl::Status NcclRank::Fail(const absl::Status& status) {
  if (status.ok()) return status;
  api_->Abort();
  return absl::Status(status.code(), absl::StrCat("NCCL rank ", place_.rank, " of ", place_.ranks,
                                                  ": ", status.message()));
}

absl::Status NcclRank::WaitFor(const std::function<absl::StatusOr<bool>()>& done,
                               absl::Time deadline, const std::string& what) {
  const absl::Time start = clock_->Now();
  while (true) {
    MR_ASSIGN_OR_RETURN(bool settled, api_->Settled());
    if (settled) {
      MR_ASSIGN_OR_RETURN(bool finished, done());
      if (finished) return absl::OkStatus();
    }
    const absl::Time now = clock_->Now();
    if (now >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "waited ", absl::FormatDuration(absl::Trunc(now - start, absl::Milliseconds(1))), " for ",
          what, "; the communicator is aborted"));
    }
    absl::MutexLock lock(&mu_);
    if (clock_->AwaitWithDeadline(&mu_, absl::Condition(&aborted_), now + kPollInterval)) {
      return absl::CancelledError(absl::StrCat("aborted while it waited for ", what));
    }
  }
}

absl::Status NcclRank::Form(absl::Time deadline) {
  absl::Status status = api_->StartInit(place_.unique_id, place_.rank, place_.ranks);
  if (status.ok()) {
    status =
        WaitFor([] { return absl::StatusOr<bool>(true); }, deadline, "the other ranks to join");
  }
  return Fail(status);
}

absl::Status NcclRank::Enqueue(const VersionManifest& manifest, size_t bucket, std::byte* base) {
  const int slot = static_cast<int>(bucket % NcclApi::kSlots);
  const BucketMeta& b = manifest.buckets[bucket];
  if (place_.rank == 0) MR_RETURN_IF_ERROR(api_->CopyIn(slot, base + b.offset, b.size));
  MR_RETURN_IF_ERROR(api_->Broadcast(slot, b.size));
  if (place_.rank != 0) MR_RETURN_IF_ERROR(api_->CopyOut(slot, base + b.offset, b.size));
  return api_->Mark(slot);
}

absl::Status NcclRank::Broadcast(const VersionManifest& manifest, absl::Time deadline,
                                 std::byte* base, const AfterBucket& after) {
  MR_RETURN_IF_ERROR(api_->Allocate(LargestBucket(manifest)));
  const size_t count = manifest.buckets.size();
  for (size_t step = 0; step < count + NcclApi::kSlots; ++step) {
    // The slot's earlier bucket first, then the slot is free.
    if (step >= NcclApi::kSlots) {
      const size_t bucket = step - NcclApi::kSlots;
      const int slot = static_cast<int>(bucket % NcclApi::kSlots);
      MR_RETURN_IF_ERROR(WaitFor(
          [&] { return api_->Done(slot); }, deadline,
          absl::StrCat("the broadcast of bucket ", bucket, " of version ", manifest.version)));
      MR_RETURN_IF_ERROR(after(bucket));
    }
    if (step < count) MR_RETURN_IF_ERROR(Enqueue(manifest, step, base));
  }
  return absl::OkStatus();
}

absl::Status NcclRank::Send(const VersionBytes& version, absl::Time deadline) {
  return Fail(Broadcast(version.manifest(), deadline, version.buffer().data(),
                        [](size_t) { return absl::OkStatus(); }));
}

absl::Status NcclRank::Receive(VersionAssembly* assembly, absl::Time deadline) {
  const VersionManifest& manifest = assembly->manifest();
  return Fail(Broadcast(manifest, deadline, assembly->bytes()->buffer().data(), [&](size_t bucket) {
    assembly->Filled(manifest.buckets[bucket].size);
    return assembly->FinishBucket();
  }));
}

absl::Status NcclTransport::Pull(const PullRequest& request, PullStats* stats) {
  const SyncSource* source = nullptr;
  for (const SyncSource& s : request.sources) {
    if (absl::StartsWith(s.address, kNcclPrefix)) source = &s;
  }
  if (source == nullptr) return absl::NotFoundError("no source names a place in an NCCL group");
  MR_ASSIGN_OR_RETURN(NcclPlace place, ParseNcclPlace(source->address));
  absl::StatusOr<std::unique_ptr<NcclApi>> api = make_api_();
  if (!api.ok()) return absl::NotFoundError(api.status().message());
  NcclRank rank(*std::move(api), std::move(place), clock_);
  {
    absl::MutexLock lock(&mu_);
    if (aborted_) return absl::CancelledError("the transfer was aborted");
    running_ = &rank;
  }
  absl::Status status = rank.Form(request.deadline);
  if (status.ok()) {
    absl::StatusOr<std::shared_ptr<VersionAssembly>> assembly = request.begin(nullptr);
    status = assembly.status();
    if (status.ok()) status = rank.Receive(assembly->get(), request.deadline);
  }
  if (status.ok()) stats->bytes_from_learner += request.manifest.total_size;
  if (absl::IsDataLoss(status)) ++stats->digest_failures;
  absl::MutexLock lock(&mu_);
  running_ = nullptr;
  return status;
}

void NcclTransport::Abort() {
  absl::MutexLock lock(&mu_);
  aborted_ = true;
  if (running_ != nullptr) running_->Abort();
}

}  // namespace millrace
