#include "weight_sync/bucket_reader.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

constexpr absl::Duration kAnswerSlack = absl::Seconds(2);

absl::Span<const std::byte> AsBytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

absl::Span<std::byte> AsWritable(char* data, size_t size) {
  return absl::MakeSpan(reinterpret_cast<std::byte*>(data), size);
}

absl::Status FromStream(StreamStatus status) {
  std::string text = absl::StrCat("it ", StreamStatusName(status));
  switch (status) {
    case StreamStatus::kOk:
      return absl::OkStatus();
    case StreamStatus::kWrongToken:
      return absl::PermissionDeniedError("it says: wrong token");
    case StreamStatus::kWrongRun:
      return absl::PermissionDeniedError("it says: wrong run");
    case StreamStatus::kNoVersion:
      return absl::NotFoundError(text);
    case StreamStatus::kMismatch:
      return absl::FailedPreconditionError(text);
    case StreamStatus::kBusy:
      return absl::ResourceExhaustedError("it has too many connections");
    case StreamStatus::kNotYet:
      return absl::DeadlineExceededError(text);
    case StreamStatus::kTransferLost:
      return absl::AbortedError(text);
    default:
      return absl::InvalidArgumentError(absl::StrCat("it answered: ", StreamStatusName(status),
                                                     " (", static_cast<int>(status), ")"));
  }
}

}  // namespace

absl::Time BucketReader::PatienceEnd() const {
  return Clock::Real()->Now() + options_.patience + kAnswerSlack;
}

absl::StatusOr<BucketReader> BucketReader::Open(const std::string& address,
                                                const VersionManifest& manifest, Options options) {
  absl::Time deadline = Clock::Real()->Now() + options.patience;
  const bool same_host = absl::StartsWith(address, kSameHostPrefix);
  absl::StatusOr<Connection> connection =
      same_host ? Connection::DialUnix(address.substr(sizeof(kSameHostPrefix) - 1), deadline,
                                       options.abort_fd)
                : Connection::Dial(address, deadline, options.abort_fd);
  MR_RETURN_IF_ERROR(connection.status());
  BucketReader reader(*std::move(connection), &manifest, std::move(options));
  MR_RETURN_IF_ERROR(reader.ShakeHands(same_host));
  return reader;
}

absl::Status BucketReader::ShakeHands(bool same_host) {
  StreamHello hello{options_.token, options_.run, manifest_->version, manifest_->digest,
                    static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.patience))};
  MR_RETURN_IF_ERROR(connection_.SendAll(AsBytes(EncodeHello(hello)), PatienceEnd()));
  char bytes[kHelloReplyBytes];
  absl::Span<std::byte> into = AsWritable(bytes, sizeof(bytes));
  if (same_host) {
    MR_ASSIGN_OR_RETURN(memory_, connection_.RecvWithFd(into, PatienceEnd()));
  } else {
    MR_RETURN_IF_ERROR(connection_.RecvAll(into, PatienceEnd()));
  }
  MR_ASSIGN_OR_RETURN(StreamHelloReply reply,
                      DecodeHelloReply(absl::string_view(bytes, sizeof(bytes))));
  MR_RETURN_IF_ERROR(FromStream(reply.status));
  if (reply.buckets != manifest_->buckets.size()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "it has ", reply.buckets, " buckets; the manifest has ", manifest_->buckets.size()));
  }
  if (same_host && !memory_.valid()) {
    return absl::FailedPreconditionError("no memory came with its answer");
  }
  return absl::OkStatus();
}

absl::Status BucketReader::Request(uint32_t index) {
  BucketRequest request{index, static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.patience))};
  return connection_.SendAll(AsBytes(EncodeRequest(request)), PatienceEnd());
}

absl::Status BucketReader::ReadReply(uint32_t index) {
  char bytes[kReplyBytes];
  MR_RETURN_IF_ERROR(connection_.RecvAll(AsWritable(bytes, sizeof(bytes)), PatienceEnd()));
  BucketReply reply = DecodeReply(absl::string_view(bytes, sizeof(bytes)));
  MR_RETURN_IF_ERROR(FromStream(reply.status));
  const BucketMeta& bucket = manifest_->buckets[index];
  if (reply.index != index || reply.size != bucket.size || reply.digest != bucket.digest) {
    return absl::DataLossError(absl::StrCat("it answered with bucket ", reply.index, " of ",
                                            reply.size, " bytes, digest ", absl::Hex(reply.digest),
                                            "; wanted was ", index, " of ", bucket.size,
                                            ", digest ", absl::Hex(bucket.digest)));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> BucketReader::ReadSome(absl::Span<std::byte> into) {
  return connection_.RecvSome(into, PatienceEnd());
}

}  // namespace millrace
