// The messages of the bucket stream, by which weight bytes travel. docs/weight_sync.md gives them
// byte by byte. Pure: bytes in, structs out; all numbers little-endian.
#ifndef MILLRACE_WEIGHT_SYNC_BUCKET_STREAM_H_
#define MILLRACE_WEIGHT_SYNC_BUCKET_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

inline constexpr uint32_t kStreamMagic = 0x5342524d;  // "MRBS"
inline constexpr uint16_t kStreamProtocol = 1;
inline constexpr size_t kMaxTokenBytes = 512;
inline constexpr size_t kMaxRunBytes = 512;
inline constexpr size_t kMaxRequestsAhead = 16;  // unanswered requests on one connection

enum class StreamStatus : uint16_t {
  kOk = 0,
  kMalformed = 1,    // magic, protocol, sizes, bucket index or too many requests
  kWrongToken = 2,   // the shared secret differs
  kWrongRun = 3,     // this process belongs to another run
  kNoVersion = 4,    // the version did not appear here in time
  kMismatch = 5,     // the version here has another manifest
  kBusy = 6,         // too many connections
  kNotYet = 7,       // the bucket did not arrive here in time
  kTransferLost = 8  // the transfer of the version to this process failed
};
const char* StreamStatusName(StreamStatus status);

struct StreamHello {
  std::string token;
  std::string run;
  int64_t version = 0;
  uint64_t manifest_digest = 0;
  uint32_t wait_ms = 0;  // how long the version may take to appear
};
inline constexpr size_t kHelloHeadBytes = 32;
std::string EncodeHello(const StreamHello& hello);
// Bytes of the whole message, from its first kHelloHeadBytes; INVALID_ARGUMENT says what is wrong.
absl::StatusOr<size_t> HelloSize(absl::string_view head);
// `bytes` holds HelloSize() bytes.
StreamHello DecodeHello(absl::string_view bytes);

struct StreamHelloReply {
  StreamStatus status = StreamStatus::kOk;
  uint32_t buckets = 0;
};
inline constexpr size_t kHelloReplyBytes = 16;
std::string EncodeHelloReply(const StreamHelloReply& reply);
absl::StatusOr<StreamHelloReply> DecodeHelloReply(absl::string_view bytes);

struct BucketRequest {
  uint32_t index = 0;
  uint32_t wait_ms = 0;  // how long the bucket may take to arrive
};
inline constexpr size_t kRequestBytes = 8;
std::string EncodeRequest(const BucketRequest& request);
BucketRequest DecodeRequest(absl::string_view bytes);

struct BucketReply {
  StreamStatus status = StreamStatus::kOk;
  uint32_t index = 0;
  uint64_t size = 0;    // bytes that follow; 0 unless kOk
  uint64_t digest = 0;  // XXH3-64 that they should have
};
inline constexpr size_t kReplyBytes = 24;
std::string EncodeReply(const BucketReply& reply);
BucketReply DecodeReply(absl::string_view bytes);

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_BUCKET_STREAM_H_
