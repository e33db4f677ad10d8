// The small HTTP server of every process: GET /metrics, GET /healthz, and whatever handlers are
// added. (prometheus-cpp's own exposer cannot start in a process that links CUDA LibTorch.)
// Thread-safe after Start().
#ifndef MILLRACE_COMMON_HTTP_SERVER_H_
#define MILLRACE_COMMON_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/metrics.h"

namespace millrace {

class HttpServer {
 public:
  struct Options {
    std::string host = "0.0.0.0";
    int port = 0;  // 0 = any free one
    // What /healthz says: OK -> 200 "ok", else 503 with the message. Called on a server thread.
    std::function<absl::Status()> health;
    // Called before /metrics is serialised, to bring sampled gauges up to date.
    std::function<void()> before_scrape;
    // Its thread must have begun to serve by then.
    absl::Duration start_timeout = absl::Seconds(30);
  };
  // Binds and serves. ALREADY_EXISTS naming host and port when the port is taken, DEADLINE_EXCEEDED
  // and UNAVAILABLE when it is bound but does not get to serving. `metrics` must outlive the
  // server.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options, Metrics* metrics);
  ~HttpServer();  // stops and joins
  int port() const;

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  absl::Status AwaitServing();
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_COMMON_HTTP_SERVER_H_
