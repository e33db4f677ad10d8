// Seconds from Publish to the last activation, for several numbers of receivers, each a process of
// its own on this machine. The numbers alternate within one run, so that a change of the machine's
// load meets all of them; digests of every bucket and tensor are included.
//
//   weight_sync_bench --bytes 538e6 --receivers 1,3 --repeat 5 --transport tcp
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "spdlog/spdlog.h"
#include "weight_sync/publisher.h"
#include "weight_sync/subscriber.h"

extern char** environ;

namespace millrace {
namespace {

struct Flags {
  double bytes = 538e6;
  std::string receivers = "1,3";
  int repeat = 5;
  std::string transport = "tcp";
  int bucket_mib = 8;
  std::string receive;  // internal: address of the publisher to receive from
  std::string member;
};

class NullReceiver : public WeightReceiver {
 public:
  absl::Status Prepare(int64_t, absl::Span<const NamedSpan>) override { return absl::OkStatus(); }
  absl::Status Activate(int64_t, absl::Span<const NamedSpan>, absl::Time) override {
    return absl::OkStatus();
  }
};

// The child: receives until the run is over.
int Receive(const Flags& flags) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Metrics metrics;
  NullReceiver receiver;
  Subscriber::Options options;
  options.run = "bench";
  options.member = flags.member;
  options.publisher = flags.receive;
  options.bucket_listen = "127.0.0.1:0";
  options.same_host = flags.transport == "same_host";
  auto subscriber = Subscriber::Start(options, &receiver, &metrics);
  if (!subscriber.ok()) return 1;
  (*subscriber)->WaitForVersion(int64_t{1} << 60, absl::Hours(1)).IgnoreError();
  return 0;
}

// Tensors as a 30-layer decoder of the given size has them: one large one, many middling ones.
struct Weights {
  std::vector<std::vector<std::byte>> storage;
  std::vector<NamedSpan> spans;
  explicit Weights(double bytes) {
    std::mt19937_64 random(1);
    auto add = [&](const std::string& name, double size) {
      int64_t floats = static_cast<int64_t>(size) / 4;
      storage.emplace_back(static_cast<size_t>(floats) * 4);
      auto* words = reinterpret_cast<uint32_t*>(storage.back().data());
      for (int64_t i = 0; i < floats; ++i) words[i] = static_cast<uint32_t>(random());
      spans.push_back({name, "F32", {floats}, {}});
    };
    add("embed", bytes * 0.21);
    for (int i = 0; i < 30; ++i) {
      for (int j = 0; j < 7; ++j) add(absl::StrCat("layer.", i, ".", j), bytes * 0.79 / 210);
      add(absl::StrCat("layer.", i, ".norm"), 2304);
    }
    for (size_t i = 0; i < spans.size(); ++i) spans[i].bytes = storage[i];
  }
  double total() const {
    double sum = 0;
    for (const auto& s : storage) sum += static_cast<double>(s.size());
    return sum;
  }
};

struct Fleet {
  int receivers = 0;
  Metrics metrics;
  std::unique_ptr<Publisher> publisher;
  std::vector<pid_t> children;
  std::vector<double> seconds, publish_seconds;
};

absl::Status StartFleet(const Flags& flags, Fleet* fleet) {
  Publisher::Options options;
  options.run = "bench";
  options.listen = "127.0.0.1:0";
  options.bucket_listen = "127.0.0.1:0";
  options.bucket_bytes = int64_t{flags.bucket_mib} << 20;
  options.same_host = flags.transport == "same_host";
  auto publisher = Publisher::Start(options, &fleet->metrics);
  if (!publisher.ok()) return publisher.status();
  fleet->publisher = *std::move(publisher);
  for (int i = 0; i < fleet->receivers; ++i) {
    std::vector<std::string> args = {
        "weight_sync_bench", "--receive",          fleet->publisher->control_address(),
        "--member",          absl::StrCat("m", i), "--transport",
        flags.transport};
    std::vector<char*> argv;
    for (std::string& a : args) argv.push_back(a.data());
    argv.push_back(nullptr);
    pid_t child = 0;
    if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, argv.data(), environ) != 0) {
      return absl::InternalError("cannot start a receiver");
    }
    fleet->children.push_back(child);
  }
  return absl::OkStatus();
}

absl::Status PublishOnce(const Weights& weights, int64_t version, bool count, Fleet* fleet) {
  const absl::Time start = Clock::Real()->Now();
  absl::Status status = fleet->publisher->Publish(version, weights.spans);
  if (!status.ok()) return status;
  const double published = absl::ToDoubleSeconds(Clock::Real()->Now() - start);
  status = fleet->publisher->WaitActivated(version, fleet->receivers, absl::Minutes(2));
  if (!status.ok()) return status;
  if (!count) return absl::OkStatus();
  fleet->seconds.push_back(absl::ToDoubleSeconds(Clock::Real()->Now() - start));
  fleet->publish_seconds.push_back(published);
  return absl::OkStatus();
}

double CpuSeconds(const rusage& usage) {
  auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + t.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double Best(const std::vector<double>& values) {
  return *std::min_element(values.begin(), values.end());
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

absl::Status Bench(const Flags& flags) {
  Weights weights(flags.bytes);
  std::vector<std::unique_ptr<Fleet>> fleets;
  for (absl::string_view count : absl::StrSplit(flags.receivers, ',')) {
    fleets.push_back(std::make_unique<Fleet>());
    fleets.back()->receivers = std::stoi(std::string(count));
    absl::Status status = StartFleet(flags, fleets.back().get());
    if (!status.ok()) return status;
  }
  // Three rounds uncounted: processes start, and every buffer gets its pages.
  const int warm = 3;
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  const double own_before = CpuSeconds(before);
  for (int round = 0; round < warm + flags.repeat; ++round) {
    for (auto& fleet : fleets) {
      absl::Status status = PublishOnce(weights, round, round >= warm, fleet.get());
      if (!status.ok()) return status;
    }
  }
  rusage own{};
  getrusage(RUSAGE_SELF, &own);
  const double own_cpu = CpuSeconds(own) - own_before;
  const double gb = weights.total() / 1e9;
  std::printf("transport %s, %.3f GB, %d rounds, buckets of %d MiB\n", flags.transport.c_str(), gb,
              flags.repeat, flags.bucket_mib);
  std::string line = absl::StrCat("{\"transport\": \"", flags.transport, "\", \"gb\": ", gb);
  for (auto& fleet : fleets) {
    absl::StrAppend(&line, ", \"seconds_", fleet->receivers, "\": ", Best(fleet->seconds));
    const double best = Best(fleet->seconds), publish = Best(fleet->publish_seconds);
    std::printf(
        "  %d receivers: best %.3f s (publish %.3f), median %.3f s; %.2f GB/s each, "
        "%.2f GB/s without the publish; t(%d)/t(%d) best %.2f, median %.2f\n",
        fleet->receivers, best, publish, Median(fleet->seconds), gb / best, gb / (best - publish),
        fleet->receivers, fleets[0]->receivers, best / Best(fleets[0]->seconds),
        Median(fleet->seconds) / Median(fleets[0]->seconds));
    fleet->publisher->Finish();
    double child_cpu = 0;
    for (pid_t child : fleet->children) {
      rusage usage{};
      wait4(child, nullptr, 0, &usage);
      child_cpu += CpuSeconds(usage);
    }
    std::printf("    CPU seconds a version and receiver: %.3f\n",
                child_cpu / (warm + flags.repeat) / fleet->receivers);
  }
  std::printf("  CPU seconds a version at the learner: %.3f\n",
              own_cpu / (warm + flags.repeat) / static_cast<double>(fleets.size()));
  std::printf("%s}\n", line.c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  millrace::Flags flags;
  CLI::App app{"Weight transfer between processes of this machine"};
  app.add_option("--bytes", flags.bytes, "bytes of a version");
  app.add_option("--receivers", flags.receivers, "numbers of receivers, first is the reference");
  app.add_option("--repeat", flags.repeat, "counted rounds");
  app.add_option("--transport", flags.transport, "tcp or same_host");
  app.add_option("--bucket-mib", flags.bucket_mib, "MiB a bucket");
  app.add_option("--receive", flags.receive)->group("");
  app.add_option("--member", flags.member)->group("");
  CLI11_PARSE(app, argc, argv);
  spdlog::set_level(spdlog::level::warn);
  if (!flags.receive.empty()) return millrace::Receive(flags);
  absl::Status status = millrace::Bench(flags);
  if (!status.ok()) {
    std::fprintf(stderr, "weight_sync_bench: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
