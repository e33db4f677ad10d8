#include "weight_sync/bucket_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "weight_sync/bucket_connection.h"

namespace millrace {
namespace {

// A fresh abstract name: nobody can hold it before us, and it says nothing about the token.
std::string RandomName() {
  std::random_device device;
  return absl::StrCat("millrace-", getpid(), "-", absl::Hex(device()), absl::Hex(device()));
}

absl::StatusOr<Fd> ListenUnix(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  socklen_t size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid() || bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(fd.get(), 128) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on the Unix socket ", name, ": ", strerror(errno)));
  }
  return fd;
}

// Any process of the host may reach an abstract name; only those of our user are let in.
bool SameUser(int fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

}  // namespace

struct BucketServer::Impl {
  Options options;
  ListenSocket tcp;
  std::string same_host_name;
  Fd same_host;
  WakeFd wake;
  std::atomic<bool> stopping{false};
  std::atomic<uint64_t> sent{0};
  Counter* sent_metric = nullptr;
  Counter* refused_metric = nullptr;
  absl::Mutex mu;
  std::map<int64_t, std::shared_ptr<VersionBytes>> versions ABSL_GUARDED_BY(mu);
  int64_t newest_forgotten ABSL_GUARDED_BY(mu) = -1;
  std::vector<std::unique_ptr<BucketConnection>> connections;  // of the thread
  std::thread thread;

  BucketConnection::Found Find(int64_t version) {
    absl::MutexLock lock(&mu);
    auto it = versions.find(version);
    if (it == versions.end()) return {nullptr, version <= newest_forgotten};
    return {it->second, false};
  }

  void Accept(const Fd& listener, bool unix_socket) {
    while (true) {
      Fd fd(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd.valid()) return;
      if (unix_socket && !SameUser(fd.get())) continue;
      if (connections.size() >= options.max_connections) {
        std::string busy = EncodeHelloReply({StreamStatus::kBusy, 0});
        [[maybe_unused]] ssize_t sent = send(fd.get(), busy.data(), busy.size(), MSG_NOSIGNAL);
        refused_metric->Increment();
        continue;
      }
      // A reply's last segment must not wait for the acknowledgement of the one before.
      int on = 1;
      if (!unix_socket) setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      connections.push_back(std::make_unique<BucketConnection>(std::move(fd), unix_socket, &options,
                                                               Clock::Real()->Now()));
    }
  }

  absl::Time NextDeadline() const {
    absl::Time first = absl::InfiniteFuture();
    for (const auto& c : connections) first = std::min(first, c->next_deadline());
    return first;
  }

  void Loop() {
    // sendfile knows no MSG_NOSIGNAL, and a peer may leave at any time: an error, not the end of a
    // program that has not ignored the signal.
    sigset_t broken_pipe;
    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
    auto find = [this](int64_t version) { return Find(version); };
    std::vector<pollfd> fds;
    while (!stopping.load()) {
      fds.assign({{wake.fd(), POLLIN, 0}, {tcp.fd.get(), POLLIN, 0}, {same_host.get(), POLLIN, 0}});
      const size_t head = fds.size();
      for (const auto& c : connections) fds.push_back({c->fd(), c->events(), 0});
      if (poll(fds.data(), fds.size(), PollMillis(NextDeadline(), Clock::Real()->Now())) < 0 &&
          errno != EINTR)
        return;
      wake.Drain();
      absl::Time now = Clock::Real()->Now();
      for (size_t i = 0; i < connections.size(); ++i) {
        uint64_t bytes = connections[i]->Advance(fds[head + i].revents, now, find);
        if (bytes == 0) continue;
        sent.fetch_add(bytes, std::memory_order_relaxed);
        sent_metric->Increment(static_cast<double>(bytes));
      }
      connections.erase(std::remove_if(connections.begin(), connections.end(),
                                       [](const auto& c) { return c->closed(); }),
                        connections.end());
      if (fds[1].revents != 0) Accept(tcp.fd, false);
      if (fds[2].revents != 0) Accept(same_host, true);
    }
  }
};

absl::StatusOr<std::unique_ptr<BucketServer>> BucketServer::Start(Options options,
                                                                  Metrics* metrics) {
  if (options.token.size() > kMaxTokenBytes || options.run.size() > kMaxRunBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the token has ", options.token.size(),
                                                   " bytes and the run's name ", options.run.size(),
                                                   "; at most ", kMaxTokenBytes, " are allowed"));
  }
  auto impl = std::make_unique<Impl>();
  impl->options = std::move(options);
  MR_ASSIGN_OR_RETURN(impl->tcp, ListenTcp(impl->options.listen));
  if (impl->options.same_host) {
    impl->same_host_name = RandomName();
    MR_ASSIGN_OR_RETURN(impl->same_host, ListenUnix(impl->same_host_name));
  }
  impl->sent_metric = &metrics->AddCounter(
      "millrace_weight_sync_bytes_total", "Weight bytes moved, by direction and kind of source.",
      {{"direction", "sent"}, {"source", impl->options.kind}, {"transport", "tcp"}});
  impl->refused_metric =
      &metrics->AddCounter("millrace_weight_sync_refused_connections_total",
                           "Bucket connections refused because there were too many.");
  Impl* raw = impl.get();
  raw->thread = std::thread([raw] { raw->Loop(); });
  return std::unique_ptr<BucketServer>(new BucketServer(std::move(impl)));
}

BucketServer::BucketServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

BucketServer::~BucketServer() {
  impl_->stopping.store(true);
  impl_->wake.Signal();
  impl_->thread.join();
}

int BucketServer::port() const { return impl_->tcp.port; }
std::string BucketServer::same_host_name() const { return impl_->same_host_name; }
void BucketServer::Wake() { impl_->wake.Signal(); }
uint64_t BucketServer::sent_bytes() const { return impl_->sent.load(std::memory_order_relaxed); }

void BucketServer::Offer(std::shared_ptr<VersionBytes> version) {
  {
    absl::MutexLock lock(&impl_->mu);
    impl_->versions[version->manifest().version].swap(version);
  }
  version.reset();  // the one replaced, if any
  Wake();
}

void BucketServer::Forget(int64_t version) {
  std::shared_ptr<VersionBytes> dropped;  // released after the lock
  absl::MutexLock lock(&impl_->mu);
  auto it = impl_->versions.find(version);
  if (it == impl_->versions.end()) return;
  dropped = std::move(it->second);
  impl_->versions.erase(it);
  impl_->newest_forgotten = std::max(impl_->newest_forgotten, version);
  Wake();  // those that wait for it
}

void BucketServer::Retain(const std::set<int64_t>& versions) {
  std::vector<std::shared_ptr<VersionBytes>> dropped;  // released after the lock
  if (versions.empty()) return;
  absl::MutexLock lock(&impl_->mu);
  for (auto it = impl_->versions.begin();
       it != impl_->versions.end() && it->first < *versions.rbegin();) {
    if (versions.count(it->first) > 0) {
      ++it;
    } else {
      dropped.push_back(std::move(it->second));
      impl_->newest_forgotten = std::max(impl_->newest_forgotten, it->first);
      it = impl_->versions.erase(it);
    }
  }
}

}  // namespace millrace
