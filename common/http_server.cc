#include "common/http_server.h"

#include <httplib.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/net_util.h"
#include "common/status_macros.h"

namespace millrace {

struct HttpServer::Impl {
  Options options;
  Metrics* metrics = nullptr;
  int port = 0;
  httplib::Server server;
  std::thread thread;
  std::atomic<bool> ended{false};  // the thread serves no more, or never did
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options, Metrics* metrics) {
  auto impl = std::make_unique<Impl>();
  Impl* p = impl.get();
  p->options = std::move(options);
  p->metrics = metrics;
  // Without SO_REUSEPORT, which httplib sets by itself: two processes would share the port.
  p->server.set_socket_options([](auto socket) {
    const int one = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  });
  p->server.new_task_queue = [] { return new httplib::ThreadPool(4); };
  p->server.Get("/metrics", [p](const httplib::Request&, httplib::Response& response) {
    if (p->options.before_scrape) p->options.before_scrape();
    response.set_content(p->metrics->Serialize(), "text/plain; version=0.0.4; charset=utf-8");
  });
  p->server.Get("/healthz", [p](const httplib::Request&, httplib::Response& response) {
    const absl::Status status = p->options.health ? p->options.health() : absl::OkStatus();
    if (!status.ok()) response.status = 503;
    response.set_content(status.ok() ? "ok\n" : absl::StrCat(status.message(), "\n"), "text/plain");
  });
  const std::string& host = p->options.host;
  if (p->options.port == 0) {
    p->port = p->server.bind_to_any_port(host);
  } else if (p->server.bind_to_port(host, p->options.port)) {
    p->port = p->options.port;
  }
  if (p->port <= 0) {
    MR_RETURN_IF_ERROR(CheckCanBind(host, p->options.port));
    return absl::UnavailableError(absl::StrCat("cannot listen on ", host, ":", p->options.port));
  }
  p->thread = std::thread([p] {
    p->server.listen_after_bind();
    p->ended = true;
  });
  auto server = std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
  MR_RETURN_IF_ERROR(server->AwaitServing());
  return server;
}

absl::Status HttpServer::AwaitServing() {
  const std::string name = JoinHostPort(impl_->options.host, impl_->port);
  const absl::Time deadline = Clock::Real()->Now() + impl_->options.start_timeout;
  while (Clock::Real()->Now() < deadline) {
    if (impl_->ended) {
      return absl::UnavailableError(absl::StrCat("the HTTP server on ", name, " does not serve"));
    }
    // stop() does nothing before the loop runs, so a server that is handed out must be running.
    if (impl_->server.is_running()) return absl::OkStatus();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return absl::DeadlineExceededError(
      absl::StrCat("waited ", absl::FormatDuration(impl_->options.start_timeout),
                   " for the HTTP server on ", name, " to begin to serve"));
}

HttpServer::~HttpServer() {
  // A server that was given up may begin to serve only now.
  while (!impl_->ended && !impl_->server.is_running()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  impl_->server.stop();
  impl_->thread.join();
}

int HttpServer::port() const { return impl_->port; }

}  // namespace millrace
