#include "common/net_util.h"

#include <errno.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace millrace {

absl::StatusOr<HostPort> ParseHostPort(const std::string& address) {
  const auto bad = [&](const char* why) {
    return absl::InvalidArgumentError(
        absl::StrCat("address \"", address, "\": ", why, "; valid: host:port, port 0..65535"));
  };
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return bad("no port");
  HostPort result;
  result.host = address.substr(0, colon);
  if (result.host.size() >= 2 && result.host.front() == '[' && result.host.back() == ']') {
    result.host = result.host.substr(1, result.host.size() - 2);
  } else if (result.host.find(':') != std::string::npos) {
    return bad("an IPv6 host needs brackets");
  }
  if (result.host.empty()) return bad("no host");
  if (!absl::SimpleAtoi(address.substr(colon + 1), &result.port) || result.port < 0 ||
      result.port > 65535) {
    return bad("bad port");
  }
  return result;
}

std::string JoinHostPort(const std::string& host, int port) {
  const bool bare_v6 = host.find(':') != std::string::npos && host.front() != '[';
  return bare_v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

std::string AnyPortOf(const std::string& address) {
  const absl::StatusOr<HostPort> where = ParseHostPort(address);
  return JoinHostPort(where.ok() ? where->host : "0.0.0.0", 0);
}

namespace {

// Binds and lets go. NOT_FOUND when this machine has no such address.
absl::Status TryBind(const addrinfo& address, const std::string& name) {
  const auto because = [&] {
    return absl::StrCat("cannot listen on ", name, ": ", std::strerror(errno));
  };
  const int fd =
      ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol);
  if (fd < 0) return absl::NotFoundError(because());
  const int one = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  absl::Status status;
  if (::bind(fd, address.ai_addr, address.ai_addrlen) != 0 || ::listen(fd, 1) != 0) {
    if (errno == EADDRINUSE) {
      status = absl::AlreadyExistsError(
          absl::StrCat("cannot listen on ", name, ": the port is in use by another process"));
    } else if (errno == EACCES) {
      status = absl::PermissionDeniedError(because());
    } else {
      status = absl::NotFoundError(because());
    }
  }
  ::close(fd);
  return status;
}

}  // namespace

absl::Status CheckCanBind(const std::string& host, int port) {
  return CheckCanBindAny(host, {host}, port);
}

absl::Status CheckCanBindAny(const std::string& host_name, absl::Span<const std::string> hosts,
                             int port) {
  const std::string name = JoinHostPort(host_name, port);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  bool bound = false;
  absl::Status missing = absl::NotFoundError(absl::StrCat("cannot listen on ", name));
  for (const std::string& host : hosts) {
    addrinfo* found = nullptr;
    if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
        error != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot listen on ", name, ": ", gai_strerror(error)));
    }
    absl::Status taken;
    for (addrinfo* a = found; a != nullptr && taken.ok(); a = a->ai_next) {
      const absl::Status status = TryBind(*a, name);
      bound |= status.ok();
      if (absl::IsNotFound(status)) {
        missing = status;
      } else {
        taken = status;
      }
    }
    freeaddrinfo(found);
    if (!taken.ok()) return taken;
  }
  return bound ? absl::OkStatus() : absl::InvalidArgumentError(missing.message());
}

std::string HostName() {
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0) return "localhost";
  return name;
}

}  // namespace millrace
