#include "weight_sync/bucket_stream.h"

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

void Put(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

uint64_t Get(absl::string_view bytes, size_t at, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; ++i) {
    value |= uint64_t{static_cast<unsigned char>(bytes[at + i])} << (8 * i);
  }
  return value;
}

}  // namespace

const char* StreamStatusName(StreamStatus status) {
  switch (status) {
    case StreamStatus::kOk:
      return "ok";
    case StreamStatus::kMalformed:
      return "malformed message";
    case StreamStatus::kWrongToken:
      return "wrong token";
    case StreamStatus::kWrongRun:
      return "wrong run";
    case StreamStatus::kNoVersion:
      return "does not have the version";
    case StreamStatus::kMismatch:
      return "has another manifest for the version";
    case StreamStatus::kBusy:
      return "too many connections";
    case StreamStatus::kNotYet:
      return "did not get the bucket in time";
    case StreamStatus::kTransferLost:
      return "lost its own transfer of the version";
  }
  return "unknown status";
}

std::string EncodeHello(const StreamHello& hello) {
  std::string out;
  Put(kStreamMagic, 4, &out);
  Put(kStreamProtocol, 2, &out);
  Put(hello.token.size(), 2, &out);
  Put(hello.run.size(), 2, &out);
  Put(0, 2, &out);
  Put(hello.wait_ms, 4, &out);
  Put(static_cast<uint64_t>(hello.version), 8, &out);
  Put(hello.manifest_digest, 8, &out);
  return absl::StrCat(out, hello.token, hello.run);
}

absl::StatusOr<size_t> HelloSize(absl::string_view head) {
  if (Get(head, 0, 4) != kStreamMagic) {
    return absl::InvalidArgumentError("the first bytes are not those of a bucket stream");
  }
  if (Get(head, 4, 2) != kStreamProtocol) {
    return absl::InvalidArgumentError(
        absl::StrCat("protocol ", Get(head, 4, 2), "; this program speaks ", kStreamProtocol));
  }
  size_t token = Get(head, 6, 2);
  size_t run = Get(head, 8, 2);
  if (token > kMaxTokenBytes || run > kMaxRunBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a token of ", token, " and a run of ", run, " bytes"));
  }
  return kHelloHeadBytes + token + run;
}

StreamHello DecodeHello(absl::string_view bytes) {
  StreamHello hello;
  size_t token = Get(bytes, 6, 2);
  hello.token = std::string(bytes.substr(kHelloHeadBytes, token));
  hello.run = std::string(bytes.substr(kHelloHeadBytes + token, Get(bytes, 8, 2)));
  hello.wait_ms = static_cast<uint32_t>(Get(bytes, 12, 4));
  hello.version = static_cast<int64_t>(Get(bytes, 16, 8));
  hello.manifest_digest = Get(bytes, 24, 8);
  return hello;
}

std::string EncodeHelloReply(const StreamHelloReply& reply) {
  std::string out;
  Put(kStreamMagic, 4, &out);
  Put(kStreamProtocol, 2, &out);
  Put(static_cast<uint16_t>(reply.status), 2, &out);
  Put(reply.buckets, 4, &out);
  Put(0, 4, &out);
  return out;
}

absl::StatusOr<StreamHelloReply> DecodeHelloReply(absl::string_view bytes) {
  if (Get(bytes, 0, 4) != kStreamMagic || Get(bytes, 4, 2) != kStreamProtocol) {
    return absl::InvalidArgumentError("the answer is not that of a bucket stream");
  }
  return StreamHelloReply{static_cast<StreamStatus>(Get(bytes, 6, 2)),
                          static_cast<uint32_t>(Get(bytes, 8, 4))};
}

std::string EncodeRequest(const BucketRequest& request) {
  std::string out;
  Put(request.index, 4, &out);
  Put(request.wait_ms, 4, &out);
  return out;
}

BucketRequest DecodeRequest(absl::string_view bytes) {
  return {static_cast<uint32_t>(Get(bytes, 0, 4)), static_cast<uint32_t>(Get(bytes, 4, 4))};
}

std::string EncodeReply(const BucketReply& reply) {
  std::string out;
  Put(static_cast<uint16_t>(reply.status), 4, &out);
  Put(reply.index, 4, &out);
  Put(reply.size, 8, &out);
  Put(reply.digest, 8, &out);
  return out;
}

BucketReply DecodeReply(absl::string_view bytes) {
  return {static_cast<StreamStatus>(Get(bytes, 0, 4)), static_cast<uint32_t>(Get(bytes, 4, 4)),
          Get(bytes, 8, 8), Get(bytes, 16, 8)};
}

}  // namespace millrace
