#include "weight_sync/socket_io.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/net_util.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

// A reader sleeps until this much has come, rather than waking for every segment.
constexpr size_t kWakeBytes = 256 << 10;

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> Resolve(const std::string& address, bool passive) {
  MR_ASSIGN_OR_RETURN(HostPort parts, ParseHostPort(address));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  int error = getaddrinfo(parts.host.empty() ? nullptr : parts.host.c_str(),
                          std::to_string(parts.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot resolve '", address, "': ", gai_strerror(error)));
  }
  return AddressList(found, &freeaddrinfo);
}

int BoundPort(int fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  if (bound.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port);
  return ntohs(reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

}  // namespace

void Fd::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

WakeFd::WakeFd() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void WakeFd::Signal() {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = write(fd_.get(), &one, sizeof(one));
}

void WakeFd::Drain() {
  uint64_t count = 0;
  [[maybe_unused]] ssize_t got = read(fd_.get(), &count, sizeof(count));
}

int PollMillis(absl::Time deadline, absl::Time now) {
  // Cut off before the conversion: an infinite wait has no number of milliseconds.
  const absl::Duration left =
      std::clamp(deadline - now, absl::ZeroDuration(), absl::Duration(absl::Minutes(1)));
  return left == absl::ZeroDuration() ? 0 : static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
}

absl::StatusOr<ListenSocket> ListenTcp(const std::string& address) {
  MR_ASSIGN_OR_RETURN(AddressList found, Resolve(address, true));
  Fd fd(socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  int on = 1;
  if (!fd.valid()) return absl::UnavailableError(absl::StrCat("socket: ", strerror(errno)));
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || listen(fd.get(), 128) != 0) {
    std::string message = absl::StrCat("cannot listen on ", address, ": ", strerror(errno));
    return errno == EADDRINUSE ? absl::AlreadyExistsError(message)
                               : absl::UnavailableError(message);
  }
  int port = BoundPort(fd.get());
  return ListenSocket{std::move(fd), port};
}

absl::Status Connection::Wait(short events, absl::Time deadline) {
  while (true) {
    pollfd fds[2] = {{fd_.get(), events, 0}, {abort_fd_, POLLIN, 0}};
    int ready = poll(fds, abort_fd_ >= 0 ? 2 : 1, PollMillis(deadline, Clock::Real()->Now()));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return absl::InternalError(absl::StrCat("poll: ", strerror(errno)));
    if (abort_fd_ >= 0 && (fds[1].revents & POLLIN) != 0) return absl::CancelledError("aborted");
    if (fds[0].revents != 0) return absl::OkStatus();
    if (Clock::Real()->Now() >= deadline) return absl::DeadlineExceededError("nothing came");
  }
}

absl::StatusOr<Connection> Connection::Dial(const std::string& address, absl::Time deadline,
                                            int abort_fd) {
  MR_ASSIGN_OR_RETURN(AddressList found, Resolve(address, false));
  absl::Status last = absl::UnavailableError("no address");
  for (addrinfo* a = found.get(); a != nullptr; a = a->ai_next) {
    Fd fd(socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd.valid()) return absl::UnavailableError(absl::StrCat("socket: ", strerror(errno)));
    int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    Connection connection(std::move(fd), abort_fd);
    if (connect(connection.fd(), a->ai_addr, a->ai_addrlen) != 0) {
      if (errno != EINPROGRESS) {
        last = absl::UnavailableError(absl::StrCat("connect: ", strerror(errno)));
        continue;
      }
      last = connection.Wait(POLLOUT, deadline);
      if (absl::IsCancelled(last)) return last;
      if (absl::IsDeadlineExceeded(last)) last = absl::DeadlineExceededError("no connection");
      if (!last.ok()) continue;
      int error = 0;
      socklen_t size = sizeof(error);
      getsockopt(connection.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) {
        last = absl::UnavailableError(absl::StrCat("connect: ", strerror(error)));
        continue;
      }
    }
    return connection;
  }
  return last;
}

absl::StatusOr<Connection> Connection::DialUnix(const std::string& name, absl::Time deadline,
                                                int abort_fd) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.empty() || name.size() + 1 > sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' is no name of a Unix socket"));
  }
  // The first byte stays zero: an abstract name, which vanishes with its process.
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  socklen_t size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::UnavailableError(absl::StrCat("socket: ", strerror(errno)));
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    return absl::UnavailableError(absl::StrCat("connect: ", strerror(errno)));
  }
  return Connection(std::move(fd), abort_fd);
}

absl::Status Connection::SendAll(absl::Span<const std::byte> bytes, absl::Time deadline) {
  while (!bytes.empty()) {
    ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      MR_RETURN_IF_ERROR(Wait(POLLOUT, deadline));
    } else if (errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("send: ", strerror(errno)));
    }
  }
  return absl::OkStatus();
}

void Connection::WakeAt(int bytes) {
  if (bytes == wake_at_) return;
  wake_at_ = bytes;
  setsockopt(fd_.get(), SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof(bytes));
}

absl::StatusOr<size_t> Connection::RecvSome(absl::Span<std::byte> into, absl::Time deadline) {
  while (true) {
    ssize_t got = recv(fd_.get(), into.data(), into.size(), 0);
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) return absl::UnavailableError("the other end closed the connection");
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
      WakeAt(static_cast<int>(std::min(into.size(), kWakeBytes)));
      MR_RETURN_IF_ERROR(Wait(POLLIN, deadline));
    } else if (errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("recv: ", strerror(errno)));
    }
  }
}

absl::Status Connection::RecvAll(absl::Span<std::byte> into, absl::Time deadline) {
  while (!into.empty()) {
    MR_ASSIGN_OR_RETURN(size_t got, RecvSome(into, deadline));
    into.remove_prefix(got);
  }
  return absl::OkStatus();
}

absl::StatusOr<Fd> Connection::RecvWithFd(absl::Span<std::byte> into, absl::Time deadline) {
  MR_RETURN_IF_ERROR(Wait(POLLIN, deadline));
  iovec part{into.data(), into.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC);
  if (got <= 0) return absl::UnavailableError("the other end closed the connection");
  Fd fd;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(c), sizeof(received));
      fd = Fd(received);
    }
  }
  MR_RETURN_IF_ERROR(RecvAll(into.subspan(static_cast<size_t>(got)), deadline));
  return fd;
}

}  // namespace millrace
