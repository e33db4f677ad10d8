// gRPC plumbing: status conversion, servers that say which port was taken, channels with our
// limits.
#ifndef MILLRACE_COMMON_GRPC_UTIL_H_
#define MILLRACE_COMMON_GRPC_UTIL_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace millrace {

// Largest message either side takes, bytes. A bigger one is refused with RESOURCE_EXHAUSTED.
inline constexpr int kMaxMessageBytes = 64 << 20;

grpc::Status ToGrpc(const absl::Status& status);
// Codes go over one to one; `what` (e.g. "Lease on buffer at host:7001") heads the message of an
// error.
absl::Status FromGrpc(const grpc::Status& status, const std::string& what);

// True for errors that a retry may cure (UNAVAILABLE, DEADLINE_EXCEEDED, ABORTED,
// RESOURCE_EXHAUSTED of flow control).
bool IsRetryable(const absl::Status& status);

// A running server and its port.
struct RunningServer {
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};
// Starts the given services on `address` ("host:port", port 0 = any). ALREADY_EXISTS naming the
// address when it is taken.
absl::StatusOr<RunningServer> StartGrpcServer(const std::string& address,
                                              const std::vector<grpc::Service*>& services);

// An insecure channel with kMaxMessageBytes, keepalive 20 s, reconnect back-off 100 ms .. 2 s.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address);

// Sets the deadline `timeout` from now.
void SetDeadline(grpc::ClientContext* context, absl::Duration timeout);

}  // namespace millrace

#endif  // MILLRACE_COMMON_GRPC_UTIL_H_
