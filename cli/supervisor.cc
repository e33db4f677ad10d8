#include "cli/supervisor.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/files.h"
#include "common/net_util.h"
#include "common/process.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr int kLogLines = 15;
// Ports of children come from below Linux's ephemeral range (32768 up): no outgoing connection can
// take a dead child's port before it is back, or connect to itself there.
constexpr int kFirstPort = 20000;
constexpr int kPortCount = 12000;

absl::Time Now() { return Clock::Real()->Now(); }

std::string Seconds(double seconds) { return absl::StrCat(seconds, " s"); }

}  // namespace

Supervisor::Supervisor(Options options)
    : options_(std::move(options)), next_port_(static_cast<uint64_t>(getpid()) * 131) {
  const RunConfig& config = options_.config;
  AddChild("buffer", "millrace-buffer", config.buffer.address);
  AddChild("learner", "millrace-learner", config.weight_sync.address);
  for (int64_t i = 0; i < config.rollout.servers; ++i) {
    AddChild(absl::StrCat("rollout-", i), "millrace-rollout", "");
  }
}

void Supervisor::AddChild(const std::string& name, const std::string& program,
                          const std::string& fixed_address) {
  const uint64_t seed = static_cast<uint64_t>(options_.config.run.seed) + children_.size();
  children_.push_back(Child{
      name, JoinPath(options_.program_dir, program),
      RestartPolicy(RestartPolicy::FromConfig(options_.config.supervisor), seed), fixed_address});
}

absl::StatusOr<RunEnd> Supervisor::Run() {
  while (true) {
    for (Child& child : children_) {
      if (const absl::Status status = Step(child); !status.ok()) {
        StopAll();
        return status;
      }
    }
    SampleMemory();
    if (options_.tick) options_.tick();
    if (learner().state == State::kEnded) {
      StopAll();
      return RunEnd::kFinished;
    }
    if (options_.wait_for_stop(kTick)) {
      Notice("stopping: the learner, the rollout servers, then the buffer");
      StopAll();
      return RunEnd::kStopped;
    }
  }
}

bool Supervisor::CanStart(const Child& child) const {
  if (Now() < child.start_at) return false;
  // Addresses outlive a restart, so a dead buffer does not hold back a rollout server's return.
  if (&child == &children_[0]) return true;
  if (children_[0].address.empty()) return false;
  return &child == &children_[1] || !children_[1].address.empty();
}

absl::Status Supervisor::Step(Child& child) {
  if (child.state == State::kWaiting && CanStart(child)) return StartChild(child);
  if (!child.process.has_value()) return absl::OkStatus();
  const std::optional<ChildExit> exit = child.process->Poll();
  // Before the exit is dealt with: a child that served and died at once did serve.
  if (child.state == State::kStarting) LookForEndpoint(child);
  if (exit.has_value()) return OnExit(child, *exit, /*too_slow=*/false);
  if (child.state == State::kStarting && Now() > child.start_deadline) {
    child.process->Signal(SIGKILL);
    return OnExit(child, ChildExit{0, SIGKILL}, /*too_slow=*/true);
  }
  return absl::OkStatus();
}

absl::Status Supervisor::PickPorts(Child& child) {
  const auto free_port = [this]() -> absl::StatusOr<int> {
    for (int i = 0; i < kPortCount; ++i) {
      const int port = kFirstPort + static_cast<int>(next_port_++ % kPortCount);
      if (CheckCanBind("127.0.0.1", port).ok()) return port;
    }
    return absl::ResourceExhaustedError(
        absl::StrCat("no free port from ", kFirstPort, " to ", kFirstPort + kPortCount - 1));
  };
  // Once others know the address it stays; until then a port that proved to be taken is changed.
  if (!child.address.empty()) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(child.port, free_port());
  MR_ASSIGN_OR_RETURN(child.metrics_port, free_port());
  return absl::OkStatus();
}

std::vector<std::string> Supervisor::Arguments(const Child& child) const {
  std::string listen = absl::StrCat("127.0.0.1:", child.port);
  std::string advertise = "127.0.0.1";
  if (!child.fixed_address.empty()) {
    listen = child.fixed_address;
    const auto where = ParseHostPort(listen);
    if (where.ok() && where->host != "0.0.0.0" && where->host != "::") advertise = where->host;
  }
  std::vector<std::string> args = {"--config",       JoinPath(options_.run_dir, "config.toml"),
                                   "--run-dir",      options_.run_dir,
                                   "--name",         child.name,
                                   "--listen",       listen,
                                   "--advertise",    advertise,
                                   "--metrics-port", absl::StrCat(child.metrics_port)};
  if (&child != &children_[0]) {
    args.push_back("--buffer");
    args.push_back(children_[0].address);
  }
  if (&child != &children_[0] && &child != &children_[1]) {
    args.push_back("--sync");
    args.push_back(children_[1].address);
  }
  return args;
}

absl::Status Supervisor::StartChild(Child& child) {
  MR_RETURN_IF_ERROR(PickPorts(child));
  // An endpoint file of an earlier life must not pass for the new one.
  MR_RETURN_IF_ERROR(RemoveRecursively(EndpointPath(child)));
  MR_ASSIGN_OR_RETURN(ChildProcess process,
                      ChildProcess::Start({child.program, Arguments(child), LogPath(child)}));
  child.process.emplace(std::move(process));
  child.policy.OnStart(Now());
  child.state = State::kStarting;
  child.start_deadline = Now() + absl::Seconds(options_.config.supervisor.start_timeout_seconds);
  Event("child_started", child, "");
  return absl::OkStatus();
}

void Supervisor::LookForEndpoint(Child& child) {
  const absl::StatusOr<std::string> text = ReadFile(EndpointPath(child));
  if (!text.ok()) return;
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("pid", 0) != child.process->pid()) return;
  const std::string address = json.value("address", "");
  if (address.empty()) return;
  if (&child == &learner() && child.address.empty()) {
    Notice(absl::StrCat("metrics of the learner: http://", json.value("metrics_address", ""),
                        "/metrics (the others: ", JoinPath(options_.run_dir, "endpoints"), ")"));
  }
  child.address = address;
  child.state = State::kRunning;
  child.policy.OnAnnounced();
  if (child.policy.restarts() > 0) Notice(absl::StrCat(child.name, " is back on ", address));
}

absl::Status Supervisor::OnExit(Child& child, const ChildExit& exit, bool too_slow) {
  child.process.reset();
  // The learner writes the summary before it ends and before it tells the others that the run is
  // over. Without one, a clean exit is that of a child that somebody else told to stop.
  const bool finished = FileExists(JoinPath(options_.run_dir, "summary.json"));
  if (exit.ok() && finished) {
    child.state = State::kEnded;
    Event("child_finished", child, "");
    return absl::OkStatus();
  }
  const std::string how =
      too_slow ? absl::StrCat("did not announce itself within ",
                              Seconds(options_.config.supervisor.start_timeout_seconds),
                              " (supervisor.start_timeout_seconds)")
               : DescribeExit(exit);
  Event("child_died", child, how);
  const RestartPolicy::Decision decision = child.policy.OnExit(exit, Now());
  if (!decision.restart) {
    return absl::AbortedError(absl::StrCat(
        child.name, " ", how, "; not started again: ", decision.reason, ". Last lines of ",
        LogPath(child), ":\n", LastLines(LogPath(child), kLogLines)));
  }
  // An error's last words say more than its code.
  const std::string why = exit.code != 0 ? LastLines(LogPath(child), 1) : "";
  Notice(absl::StrCat(child.name, " ", how, why.empty() ? "" : ": ", why, "; starting it again in ",
                      absl::FormatDuration(absl::Trunc(decision.delay, absl::Milliseconds(1))),
                      " (log: ", LogPath(child), ")"));
  child.state = State::kWaiting;
  child.start_at = Now() + decision.delay;
  return absl::OkStatus();
}

void Supervisor::SampleMemory() {
  for (Child& child : children_) {
    if (!child.process.has_value()) continue;
    child.peak_bytes = std::max(child.peak_bytes, PeakResidentBytes(child.process->pid()));
  }
}

void Supervisor::Stop(const std::vector<Child*>& children) {
  for (Child* child : children) {
    if (child->process.has_value()) child->process->Signal(SIGTERM);
  }
  const absl::Time begin = Now();
  bool told = false, hurried = false;
  while (true) {
    std::vector<std::string> running;
    for (Child* child : children) {
      if (Runs(*child)) running.push_back(child->name);
    }
    if (running.empty() || Now() - begin > options_.stop_grace) break;
    if (!hurried && !Runs(learner())) {
      hurried = true;
      for (Child* child : children) {
        if (Runs(*child)) child->process->Signal(SIGUSR1);
      }
    }
    if (!told && Now() - begin > options_.tell_after) {
      told = true;
      Notice(absl::StrCat("waiting for ", absl::StrJoin(running, ", "), " to end, at most ",
                          absl::FormatDuration(options_.stop_grace),
                          "; a second Ctrl-C kills all at once, back to the last checkpoint"));
    }
    SampleMemory();
    absl::SleepFor(absl::Milliseconds(20));
  }
  for (Child* child : children) {
    if (Runs(*child)) {
      Notice(absl::StrCat(child->name, " did not end within ",
                          absl::FormatDuration(options_.stop_grace), "; killing it"));
      child->process->Signal(SIGKILL);
    }
    child->process.reset();  // reaps
  }
}

void Supervisor::StopAll() {
  std::vector<Child*> others;
  for (size_t i = 1; i < children_.size(); ++i) others.push_back(&children_[i]);
  Stop(others);
  // Last, so that what the others still have to say is stored.
  Stop({&buffer()});
}

std::map<std::string, int64_t> Supervisor::peak_memory_bytes() const {
  std::map<std::string, int64_t> peaks;
  for (const Child& child : children_) peaks[child.name] = child.peak_bytes;
  return peaks;
}

std::string Supervisor::EndpointPath(const Child& child) const {
  return JoinPath(options_.run_dir, absl::StrCat("endpoints/", child.name, ".json"));
}

std::string Supervisor::LogPath(const Child& child) const {
  return JoinPath(options_.run_dir, absl::StrCat("logs/", child.name, ".log"));
}

void Supervisor::Notice(const std::string& line) const {
  if (options_.notice) options_.notice(line);
}

void Supervisor::Event(const std::string& event, const Child& child,
                       const std::string& detail) const {
  nlohmann::ordered_json fields = {{"child", child.name}};
  if (child.process.has_value()) fields["pid"] = child.process->pid();
  if (!detail.empty()) fields["detail"] = detail;
  AppendEvent(options_.run_dir, {"supervisor", "supervisor", event, fields.dump()});
}

}  // namespace millrace
