// What every role's main() does alike: flags, config, logging, signals, the endpoint file,
// /metrics.
//
//   int main(int argc, char** argv) {
//     return millrace::RunRole(argc, argv, "buffer", [](millrace::Role& role) -> absl::Status { ...
//     });
//   }
//
// Flags of every role: --config FILE (default: config.toml in --run-dir), --set a.b=c (repeatable),
// --name NAME, --run-dir DIR,
// --listen HOST:PORT,
// --advertise HOST (address others reach it under; default 127.0.0.1), --metrics-port N, --buffer
// HOST:PORT, --sync HOST:PORT. Returns 0 when the body returns OK, 1 with the error on stderr
// otherwise (kExitGaveUp when it is marked by GaveUp), 2 for bad flags or config.
#ifndef MILLRACE_COMMON_PROCESS_H_
#define MILLRACE_COMMON_PROCESS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/config.h"
#include "common/http_server.h"
#include "common/metrics.h"

namespace millrace {

struct RoleFlags {
  std::string name;                  // e.g. "rollout-0"; default the role's name
  std::string run_dir;               // overrides run.dir
  std::string listen = "0.0.0.0:0";  // of the role's gRPC server
  std::string advertise =
      "127.0.0.1";  // host that other processes reach this one under; empty = hostname
  int metrics_port = 0;
  std::string buffer;  // host:port of the buffer
  std::string sync;    // host:port of the learner's weight sync service
};

class Role {
 public:
  RunConfig config;
  RoleFlags flags;
  std::string run_dir;  // exists and is writable
  std::unique_ptr<Metrics> metrics;

  // True once a stop signal came; long waits check it at least every 200 ms.
  bool stopping() const;
  // Waits until stopping() or `timeout`; returns stopping().
  bool WaitForStop(absl::Duration timeout) const;
  // Serves /metrics and /healthz, and writes <run_dir>/endpoints/<name>.json (atomically):
  // {"name","role","pid","address","metrics_address","started_unix_ms"}. `address` is what others
  // dial for gRPC.
  absl::Status Announce(const std::string& address, std::function<absl::Status()> health = nullptr,
                        std::function<void()> before_scrape = nullptr);
  // Appends {"unix_ms":..,"role":..,"name":..,"event":event, fields...} to <run_dir>/events.jsonl;
  // `fields_json` is a JSON object text or empty.
  void Event(const std::string& event, const std::string& fields_json = "");

 private:
  friend int RunRole(int, char**, const std::string&, const std::function<absl::Status(Role&)>&);
  std::string role_;
  std::unique_ptr<HttpServer> http_;
};

int RunRole(int argc, char** argv, const std::string& role,
            const std::function<absl::Status(Role&)>& body);

inline constexpr int kExitUsage = 2;   // bad flags or config
inline constexpr int kExitGaveUp = 4;  // the error is marked by GaveUp

// Marks an error that a new process would only run into again after as long a wait: whoever
// supervises this one should end the run rather than restart it.
absl::Status GaveUp(absl::Status status);

// The pieces of RunRole that other programs use too.
//
// SIGTERM, SIGINT and SIGHUP (the terminal is gone; not when it was ignored, as under nohup) set a
// flag; a second SIGTERM or SIGINT exits at once (130). SIGUSR1 is a stop, or follows one, that
// waits for nothing that can be left undone. SIGPIPE is ignored.
void InstallStopSignals();
bool StopRequested();
bool StopHurried();  // by SIGUSR1
// Waits until a stop signal or `timeout`; returns StopRequested().
bool WaitForStopSignal(absl::Duration timeout);

struct EventLine {
  std::string role;
  std::string name;
  std::string event;
  std::string fields_json;  // a JSON object text or empty
};
// Role::Event without a Role. A failure to write is logged, never fatal.
void AppendEvent(const std::string& run_dir, const EventLine& line);

// Peak and present resident set of a process (0 = this one), bytes, from /proc; 0 when it is gone.
int64_t PeakResidentBytes(int pid = 0);
int64_t ResidentBytes(int pid = 0);

// Compute threads for a setting of which 0 means one a core; at least 1.
int ComputeThreads(int64_t wanted);

}  // namespace millrace

#endif  // MILLRACE_COMMON_PROCESS_H_
