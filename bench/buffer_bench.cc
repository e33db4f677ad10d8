// The data buffer under load: a server process of its own, clients with a channel each.
//
//   buffer_bench --workload=push --clients=4 --pushes=20000 --tokens=2180 --durability=sync --dir=.
//
// Prints confirmed pushes a second, the time from push to confirmation, and the server's CPU time
// an item. With --durability=sync a confirmation means that the disk was synced.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "buffer/buffer_client.h"
#include "buffer/buffer_core.h"
#include "buffer/buffer_service.h"
#include "buffer/trajectory_proto.h"
#include "common/grpc_util.h"
#include "common/metrics.h"

namespace millrace {
namespace {

constexpr uint32_t kGroupSize = 50;

struct Flags {
  std::string workload = "push";
  int clients = 4;
  int pushes = 20000;
  int tokens = 2180;
  std::string durability = "sync";
  std::string dir = ".";
};

// Serves until `stop` is closed; tells its port through `port`.
int Serve(const Flags& flags, const std::string& path, int port, int stop) {
  Metrics metrics;
  BufferCore::Options options;
  options.run = "bench";
  options.store_path = path;
  options.sync = flags.durability == "sync";
  options.metrics = &metrics;
  options.groups.group_size = kGroupSize;
  options.groups.admission = {flags.pushes, 0, false, 0};
  options.groups.lease_ms = 3600 * 1000;
  absl::StatusOr<std::unique_ptr<BufferCore>> core = BufferCore::Open(options);
  if (!core.ok()) {
    std::fprintf(stderr, "%s\n", core.status().ToString().c_str());
    return 1;
  }
  BufferService service(core->get());
  absl::StatusOr<RunningServer> server = StartGrpcServer("127.0.0.1:0", {&service});
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.status().ToString().c_str());
    return 1;
  }
  char byte = 0;
  if (write(port, &server->port, sizeof(int)) != sizeof(int)) return 1;
  while (read(stop, &byte, 1) > 0) {
  }
  server->server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
  return 0;
}

Trajectory MakeItem(int tokens) {
  std::mt19937 random(1);
  Trajectory t;
  t.task = "bench";
  for (int i = 0; i < tokens; ++i) {
    const bool sampled = i >= tokens / 4;
    t.token_ids.push_back(static_cast<int32_t>(random() % 32768));
    t.loss_mask.push_back(sampled ? 1 : 0);
    t.logprobs.push_back(sampled ? -static_cast<float>(random() % 1000) / 100 : 0);
  }
  t.versions = {{0, static_cast<uint32_t>(tokens / 4), static_cast<uint32_t>(tokens)}};
  return t;
}

struct Tally {
  absl::Mutex mu;
  std::vector<double> seconds ABSL_GUARDED_BY(mu);
  int failed ABSL_GUARDED_BY(mu) = 0;
};

void PushAll(const std::string& address, int index, int count, const Trajectory& item,
             Tally* tally) {
  BufferClient client({address, "bench", absl::StrCat("client-", index), absl::Seconds(120)});
  int left = count;
  while (left > 0) {
    absl::StatusOr<LeaseResult> leases = client.Lease(8, absl::Seconds(60));
    if (!leases.ok() || leases->leases.empty()) break;
    for (const GroupLease& lease : leases->leases) {
      for (const uint32_t member : lease.missing) {
        if (left-- <= 0) break;
        Trajectory t = item;
        t.key = {"bench", lease.group_id, member, lease.attempt};
        t.problem_id = lease.problem_id;
        t.reward = member % 2;
        const absl::Time begin = absl::Now();
        client.Push(std::move(t),
                    [tally, begin](absl::StatusOr<PushOutcome> outcome, const std::string& reason) {
                      const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
                      absl::MutexLock lock(&tally->mu);
                      tally->seconds.push_back(seconds);
                      if (!outcome.ok() || *outcome != PushOutcome::kStored) ++tally->failed;
                    });
      }
    }
  }
  const absl::Status status = client.FlushPushes(absl::Seconds(120));
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
}

double CpuSeconds(int who) {
  rusage usage{};
  getrusage(who, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int RunPush(const Flags& flags) {
  std::string dir = flags.dir + "/buffer-bench-XXXXXX";
  if (mkdtemp(dir.data()) == nullptr) {
    std::perror(dir.c_str());
    return 1;
  }
  int port_pipe[2], stop_pipe[2];
  if (pipe(port_pipe) != 0 || pipe(stop_pipe) != 0) return 1;
  const pid_t child = fork();  // before gRPC has threads
  if (child == 0) {
    close(stop_pipe[1]);
    _exit(Serve(flags, dir + "/buffer.sqlite", port_pipe[1], stop_pipe[0]));
  }
  close(port_pipe[1]);
  int port = 0;
  if (read(port_pipe[0], &port, sizeof(port)) != sizeof(port)) return 1;
  const std::string address = absl::StrCat("127.0.0.1:", port);

  const Trajectory item = MakeItem(flags.tokens);
  v1::PushRequest request;
  ToProto(item, request.mutable_trajectory());
  Tally tally;
  {
    BufferClient learner({address, "bench", "learner", absl::Seconds(60)});
    if (!learner.SetVersion(0).ok()) return 1;
  }
  const absl::Time begin = absl::Now();
  std::vector<std::thread> clients;
  for (int i = 0; i < flags.clients; ++i) {
    clients.emplace_back(PushAll, address, i, flags.pushes / flags.clients, std::cref(item),
                         &tally);
  }
  for (std::thread& client : clients) client.join();
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  const double client_cpu = CpuSeconds(RUSAGE_SELF);
  close(stop_pipe[1]);
  waitpid(child, nullptr, 0);
  std::filesystem::remove_all(dir);

  absl::MutexLock lock(&tally.mu);
  std::sort(tally.seconds.begin(), tally.seconds.end());
  const double n = static_cast<double>(tally.seconds.size());
  if (tally.seconds.empty()) return 1;
  const auto at = [&](double q) { return tally.seconds[static_cast<size_t>(q * (n - 1))] * 1e3; };
  std::printf("workload=push durability=%s clients=%d item=%zu bytes pushes=%.0f failed=%d\n",
              flags.durability.c_str(), flags.clients, request.ByteSizeLong(), n, tally.failed);
  std::printf(
      "confirmed %.0f pushes/s, %.1f MiB/s; push to confirmation p50 %.1f ms, p99 %.1f ms\n",
      n / seconds, n * static_cast<double>(request.ByteSizeLong()) / seconds / (1 << 20), at(0.5),
      at(0.99));
  std::printf("server CPU %.0f us/item, clients CPU %.0f us/item\n",
              CpuSeconds(RUSAGE_CHILDREN) / n * 1e6, client_cpu / n * 1e6);
  std::printf(
      "{\"pushes_per_s\": %.0f, \"p50_ms\": %.1f, \"p99_ms\": %.1f, \"server_cpu_us\": %.0f}\n",
      n / seconds, at(0.5), at(0.99), CpuSeconds(RUSAGE_CHILDREN) / n * 1e6);
  return tally.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  millrace::Flags flags;
  CLI::App app("Benchmark of the data buffer");
  app.add_option("--workload", flags.workload, "push")->check(CLI::IsMember({"push"}));
  app.add_option("--clients", flags.clients, "Clients, each with a channel of its own");
  app.add_option("--pushes", flags.pushes, "Trajectories in all");
  app.add_option("--tokens", flags.tokens, "Tokens of a trajectory (2180 = about 16 KiB)");
  app.add_option("--durability", flags.durability, "sync, memory")
      ->check(CLI::IsMember({"sync", "memory"}));
  app.add_option("--dir", flags.dir, "Folder for the store; its disk is what is measured");
  CLI11_PARSE(app, argc, argv);
  return millrace::RunPush(flags);
}
