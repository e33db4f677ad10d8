// Plain sockets with deadlines: what the bucket stream needs and no more.
#ifndef MILLRACE_WEIGHT_SYNC_SOCKET_IO_H_
#define MILLRACE_WEIGHT_SYNC_SOCKET_IO_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace millrace {

// Owns a file descriptor. Movable.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { Reset(); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset();

 private:
  int fd_ = -1;
};

// An eventfd that wakes a poll(). Thread-safe.
class WakeFd {
 public:
  WakeFd();
  int fd() const { return fd_.get(); }
  void Signal();
  void Drain();

 private:
  Fd fd_;
};

// What to give to poll() so that it returns at `deadline`, or after a minute if that is sooner.
int PollMillis(absl::Time deadline, absl::Time now);

struct ListenSocket {
  Fd fd;  // non-blocking
  int port = 0;
};
// ALREADY_EXISTS naming the address when it is taken.
absl::StatusOr<ListenSocket> ListenTcp(const std::string& address);

// One blocking-with-deadline connection. Not thread-safe. When `abort_fd` becomes readable every
// call returns CANCELLED.
class Connection {
 public:
  static absl::StatusOr<Connection> Dial(const std::string& address, absl::Time deadline,
                                         int abort_fd);
  // The other end of an abstract Unix socket on this host.
  static absl::StatusOr<Connection> DialUnix(const std::string& name, absl::Time deadline,
                                             int abort_fd);
  absl::Status SendAll(absl::Span<const std::byte> bytes, absl::Time deadline);
  // Reads at least one byte; `into` must not ask for more than the other end is going to send, for
  // the wait goes on until a good part of it is there. UNAVAILABLE when the other end closed,
  // DEADLINE_EXCEEDED when nothing came.
  absl::StatusOr<size_t> RecvSome(absl::Span<std::byte> into, absl::Time deadline);
  absl::Status RecvAll(absl::Span<std::byte> into, absl::Time deadline);
  // Reads `into` wholly, and the descriptor that came with it (invalid when none did).
  absl::StatusOr<Fd> RecvWithFd(absl::Span<std::byte> into, absl::Time deadline);
  int fd() const { return fd_.get(); }

 private:
  Connection(Fd fd, int abort_fd) : fd_(std::move(fd)), abort_fd_(abort_fd) {}
  absl::Status Wait(short events, absl::Time deadline);
  void WakeAt(int bytes);
  Fd fd_;
  int abort_fd_;
  int wake_at_ = 1;  // bytes that make the socket readable
};

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_SOCKET_IO_H_
