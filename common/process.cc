#include "common/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/clock.h"
#include "common/files.h"
#include "common/net_util.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

std::atomic<int> g_signals{0};
std::atomic<bool> g_hurried{false};
int g_stop_event = -1;  // readable for ever after the first signal

constexpr char kGaveUpPayload[] = "millrace/gave_up";

extern "C" void OnStopSignal(int signal) {
  const int saved = errno;
  // A terminal that closes may tell twice, by the kernel and by its shell.
  if (g_signals.fetch_add(1) > 0 && signal != SIGHUP) _exit(130);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(g_stop_event, &one, sizeof(one));
  errno = saved;
}

extern "C" void OnHurrySignal(int) {
  const int saved = errno;
  g_hurried = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(g_stop_event, &one, sizeof(one));
  errno = saved;
}

absl::Status ProcField(int pid, absl::string_view key, int64_t* bytes) {
  const std::string path = pid == 0 ? "/proc/self/status" : absl::StrCat("/proc/", pid, "/status");
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (line.substr(0, key.size()) != key) continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() >= 2 && absl::SimpleAtoi(words[1], bytes)) {
      *bytes *= 1024;
      return absl::OkStatus();
    }
  }
  return absl::NotFoundError(absl::StrCat(path, " has no ", key));
}

int64_t UnixMillis() { return absl::ToUnixMillis(Clock::Real()->Now()); }

struct ParsedFlags {
  RoleFlags flags;
  std::string config_path;
  std::vector<std::string> overrides;
};

void DefineFlags(CLI::App& app, ParsedFlags& parsed) {
  app.add_option("--config", parsed.config_path,
                 "TOML file of the run; default: config.toml in --run-dir");
  app.add_option("--set", parsed.overrides, "Override a config field: section.field=value")
      ->take_all();
  app.add_option("--name", parsed.flags.name, "Name of this process in logs and metrics");
  app.add_option("--run-dir", parsed.flags.run_dir, "Run directory; overrides run.dir");
  app.add_option("--listen", parsed.flags.listen, "host:port of the gRPC server, port 0 = any");
  app.add_option("--advertise", parsed.flags.advertise,
                 "Host that others reach this process under; empty = the host name");
  app.add_option("--metrics-port", parsed.flags.metrics_port, "Port of /metrics; 0 = any");
  app.add_option("--buffer", parsed.flags.buffer, "host:port of the buffer");
  app.add_option("--sync", parsed.flags.sync, "host:port of the learner's weight sync service");
}

absl::StatusOr<RunConfig> LoadRoleConfig(const ParsedFlags& parsed) {
  std::string path = parsed.config_path;
  if (path.empty()) {
    if (parsed.flags.run_dir.empty()) {
      return absl::InvalidArgumentError("no config: give --config FILE, or --run-dir of a run");
    }
    path = JoinPath(parsed.flags.run_dir, "config.toml");
  }
  return LoadConfig(path, parsed.overrides);
}

void SetUpLogging(const std::string& name) {
  auto logger = spdlog::stderr_logger_mt("millrace");
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %L " + name + ": %v");
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace

void InstallStopSignals() {
  if (g_stop_event < 0) g_stop_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct sigaction action {};
  action.sa_handler = OnStopSignal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  struct sigaction hangup {};
  sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
  action.sa_handler = OnHurrySignal;
  sigaction(SIGUSR1, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);  // a peer that went away is an error return, not a death
}

bool StopRequested() { return g_signals.load() > 0 || g_hurried.load(); }

bool StopHurried() { return g_hurried.load(); }

bool WaitForStopSignal(absl::Duration timeout) {
  const absl::Time deadline = Clock::Real()->Now() + timeout;
  while (!StopRequested()) {
    const absl::Duration left = deadline - Clock::Real()->Now();
    if (left <= absl::ZeroDuration()) break;
    pollfd event{g_stop_event, POLLIN, 0};
    const int64_t ms = absl::ToInt64Milliseconds(std::min(left, absl::Seconds(60)));
    poll(&event, 1, static_cast<int>(ms + 1));
  }
  return StopRequested();
}

bool Role::stopping() const { return StopRequested(); }

bool Role::WaitForStop(absl::Duration timeout) const { return WaitForStopSignal(timeout); }

absl::Status Role::Announce(const std::string& address, std::function<absl::Status()> health,
                            std::function<void()> before_scrape) {
  const std::string host = flags.advertise.empty() ? HostName() : flags.advertise;
  Gauge& resident = metrics->AddGauge("millrace_process_resident_bytes", "Resident set, bytes.");
  Gauge& peak =
      metrics->AddGauge("millrace_process_peak_resident_bytes", "Largest resident set, bytes.");
  HttpServer::Options options;
  if (const auto listen = ParseHostPort(flags.listen); listen.ok()) options.host = listen->host;
  options.port = flags.metrics_port;
  options.health = std::move(health);
  options.before_scrape = [&resident, &peak, hook = std::move(before_scrape)] {
    resident.Set(static_cast<double>(ResidentBytes()));
    peak.Set(static_cast<double>(PeakResidentBytes()));
    if (hook) hook();
  };
  MR_ASSIGN_OR_RETURN(http_, HttpServer::Start(std::move(options), metrics.get()));
  const nlohmann::json endpoint = {{"name", flags.name},
                                   {"role", role_},
                                   {"pid", getpid()},
                                   {"address", address},
                                   {"metrics_address", JoinHostPort(host, http_->port())},
                                   {"started_unix_ms", UnixMillis()}};
  const std::string folder = JoinPath(run_dir, "endpoints");
  MR_RETURN_IF_ERROR(MakeDirectories(folder));
  MR_RETURN_IF_ERROR(
      WriteFileAtomically(JoinPath(folder, flags.name + ".json"), endpoint.dump() + "\n"));
  spdlog::info("serving on {}, metrics on {}", address,
               endpoint["metrics_address"].get<std::string>());
  return absl::OkStatus();
}

void Role::Event(const std::string& event, const std::string& fields_json) {
  AppendEvent(run_dir, {role_, flags.name, event, fields_json});
}

void AppendEvent(const std::string& run_dir, const EventLine& line) {
  nlohmann::ordered_json json = {
      {"unix_ms", UnixMillis()}, {"role", line.role}, {"name", line.name}, {"event", line.event}};
  if (!line.fields_json.empty()) {
    const auto fields = nlohmann::ordered_json::parse(line.fields_json, nullptr, false);
    if (fields.is_object()) {
      // A field that is called like one of ours must not replace it.
      for (const auto& [key, value] : fields.items()) {
        json[json.contains(key) ? absl::StrCat(line.event, "_", key) : key] = value;
      }
    } else {
      json["detail"] = line.fields_json;
    }
  }
  const std::string text =
      json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const std::string path = JoinPath(run_dir, "events.jsonl");
  // One write with O_APPEND: lines of several processes do not mix.
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0 || write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    spdlog::warn("writing {}: {}", path, std::strerror(errno));
  }
  if (fd >= 0) close(fd);
}

int RunRole(int argc, char** argv, const std::string& role,
            const std::function<absl::Status(Role&)>& body) {
  ParsedFlags parsed;
  parsed.flags.name = role;
  CLI::App app(absl::StrCat("millrace ", role));
  DefineFlags(app, parsed);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  SetUpLogging(parsed.flags.name);
  absl::StatusOr<RunConfig> config = LoadRoleConfig(parsed);
  if (!config.ok()) {
    fprintf(stderr, "%s\n", std::string(config.status().message()).c_str());
    return kExitUsage;
  }
  Role r;
  r.role_ = role;
  r.config = *std::move(config);
  r.flags = std::move(parsed.flags);
  r.run_dir = r.flags.run_dir.empty() ? r.config.run.dir : r.flags.run_dir;
  if (r.run_dir.empty()) {
    fprintf(stderr, "no run directory: give --run-dir DIR, or run.dir in the config\n");
    return kExitUsage;
  }
  if (const absl::Status status = CheckWritableDirectory(r.run_dir); !status.ok()) {
    fprintf(stderr, "run directory %s cannot be used: %s\n", r.run_dir.c_str(),
            std::string(status.message()).c_str());
    return 1;
  }
  r.metrics = std::make_unique<Metrics>(
      Labels{{"role", role}, {"name", r.flags.name}, {"run", r.config.run.name}});
  InstallStopSignals();
  const absl::Status status = body(r);
  r.http_.reset();  // serves r.metrics
  if (!status.ok()) {
    spdlog::error("{}", status.ToString(absl::StatusToStringMode::kWithNoExtraData));
    spdlog::default_logger()->flush();
    return status.GetPayload(kGaveUpPayload).has_value() ? kExitGaveUp : 1;
  }
  return 0;
}

absl::Status GaveUp(absl::Status status) {
  if (!status.ok()) status.SetPayload(kGaveUpPayload, absl::Cord("1"));
  return status;
}

int64_t PeakResidentBytes(int pid) {
  int64_t bytes = 0;
  return ProcField(pid, "VmHWM:", &bytes).ok() ? bytes : 0;
}

int64_t ResidentBytes(int pid) {
  int64_t bytes = 0;
  return ProcField(pid, "VmRSS:", &bytes).ok() ? bytes : 0;
}

int ComputeThreads(int64_t wanted) {
  return static_cast<int>(wanted > 0 ? wanted : std::max(std::thread::hardware_concurrency(), 1u));
}

}  // namespace millrace
