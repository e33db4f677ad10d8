// Addresses and ports. Thread-safe.
#ifndef MILLRACE_COMMON_NET_UTIL_H_
#define MILLRACE_COMMON_NET_UTIL_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace millrace {

struct HostPort {
  std::string host;
  int port = 0;
};

// "host:port", "[::1]:port". INVALID_ARGUMENT names the text.
absl::StatusOr<HostPort> ParseHostPort(const std::string& address);
// The other way round: an IPv6 host gets its brackets.
std::string JoinHostPort(const std::string& host, int port);
// Any port of the host that `address` names; of every IPv4 one when it is no address.
std::string AnyPortOf(const std::string& address);

// Tries to bind a TCP socket as a server would, without port sharing, and lets go of it at once.
// ALREADY_EXISTS naming host:port when it is taken, PERMISSION_DENIED, INVALID_ARGUMENT when the
// host is not one of this machine. Of several addresses that the host stands for, those that this
// machine has count, and one is enough: "localhost" is ::1, too, where there is no IPv6. For
// finding out why a library's bind failed.
absl::Status CheckCanBind(const std::string& host, int port);
// The same with the addresses of all `hosts`, called `name` in the error.
absl::Status CheckCanBindAny(const std::string& name, absl::Span<const std::string> hosts,
                             int port);

// This machine's host name.
std::string HostName();

}  // namespace millrace

#endif  // MILLRACE_COMMON_NET_UTIL_H_
