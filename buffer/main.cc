// millrace-buffer: leases out, trajectories in, batches out.
#include <spdlog/spdlog.h>

#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "buffer/buffer_core.h"
#include "buffer/buffer_service.h"
#include "common/grpc_util.h"
#include "common/net_util.h"
#include "common/process.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

// Calls that wait are ended after this; pushes in flight get this long to be answered.
constexpr absl::Duration kShutdown = absl::Seconds(2);

absl::Status RunBuffer(Role& role) {
  BufferCore::Options options = BufferCore::FromConfig(role.config, role.run_dir);
  options.metrics = role.metrics.get();
  MR_ASSIGN_OR_RETURN(std::unique_ptr<BufferCore> opened, BufferCore::Open(options));
  // Shared with the HTTP server of the role, which outlives this function.
  const std::shared_ptr<BufferCore> core = std::move(opened);
  const BufferStats stats = core->Stats();
  spdlog::info(
      "store {}: {} trajectories; groups: {} leased, {} ready, {} assigned, {} committed; version "
      "{}",
      options.store_path, stats.stored_trajectories, stats.leased_groups, stats.ready_groups,
      stats.assigned_groups, stats.committed_groups, stats.version);
  BufferService service(core.get());
  MR_ASSIGN_OR_RETURN(const RunningServer running, StartGrpcServer(role.flags.listen, {&service}));
  const std::string host = role.flags.advertise.empty() ? HostName() : role.flags.advertise;
  absl::Status status = role.Announce(
      JoinHostPort(host, running.port), [core] { return core->health(); },
      [core] { core->UpdateMetrics(); });
  if (status.ok()) {
    spdlog::info("serving run \"{}\" on {}", options.run, JoinHostPort(host, running.port));
    role.Event("buffer_started",
               absl::StrCat("{\"stored_trajectories\":", stats.stored_trajectories, "}"));
    while (!role.WaitForStop(absl::Seconds(60))) {
    }
    spdlog::info("stopping");
  }
  running.server->Shutdown(std::chrono::system_clock::now() +
                           absl::ToChronoMilliseconds(kShutdown));
  return status;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::RunRole(argc, argv, "buffer", millrace::RunBuffer);
}
