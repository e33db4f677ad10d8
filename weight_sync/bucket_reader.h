// The reading end of the bucket stream: one connection to one source for one version. For one
// thread.
#ifndef MILLRACE_WEIGHT_SYNC_BUCKET_READER_H_
#define MILLRACE_WEIGHT_SYNC_BUCKET_READER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "weight_sync/bucket_stream.h"
#include "weight_sync/manifest.h"
#include "weight_sync/socket_io.h"

namespace millrace {

class BucketReader {
 public:
  struct Options {
    std::string run;
    std::string token;
    // How long a source may take to have the version or a bucket; the reader itself waits a little
    // longer, so that the source's own answer comes first.
    absl::Duration patience = absl::Seconds(3);
    int abort_fd = -1;
  };
  // Connects and shakes hands. `address` is host:port, or the name of an abstract Unix socket after
  // kSameHostPrefix. Errors say what the source answered: PERMISSION_DENIED (token, run), NOT_FOUND
  // (version), FAILED_PRECONDITION (manifest), RESOURCE_EXHAUSTED (busy).
  static absl::StatusOr<BucketReader> Open(const std::string& address,
                                           const VersionManifest& manifest, Options options);

  // Asks for a bucket; answers come in the order asked.
  absl::Status Request(uint32_t index);
  // Waits for the head of the next answer and checks it against the manifest: its index is `index`.
  absl::Status ReadReply(uint32_t index);
  // Bytes that follow the head (TCP only).
  absl::StatusOr<size_t> ReadSome(absl::Span<std::byte> into);
  // The memfd of the version (same host only), once.
  Fd TakeMemory() { return std::move(memory_); }
  // Keeps the connection alone open.
  Connection TakeConnection() && { return std::move(connection_); }

 private:
  BucketReader(Connection connection, const VersionManifest* manifest, Options options)
      : connection_(std::move(connection)), manifest_(manifest), options_(std::move(options)) {}
  absl::Status ShakeHands(bool same_host);
  absl::Time PatienceEnd() const;

  Connection connection_;
  const VersionManifest* manifest_;  // outlives the reader
  Options options_;
  Fd memory_;
};

inline constexpr char kSameHostPrefix[] = "same-host:";

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_BUCKET_READER_H_
