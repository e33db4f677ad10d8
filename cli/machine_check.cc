#include "cli/machine_check.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/process.h"

namespace millrace {
namespace {

// Of a key or a value: in the smallest type that a cache on the CPU may have, so that nothing is
// refused that would fit.
constexpr double kBytesPerElement = 2;
// So many threads are slow on few cores, and not yet a slip of the hand.
constexpr int64_t kAnyThreads = 64;
constexpr int64_t kThreadsPerCore = 4;

bool UsesCpu(const RunConfig& config) {
  const std::vector<std::string>& devices = config.rollout.devices;
  if (devices.empty()) return config.model.device == "cpu";
  return std::find(devices.begin(), devices.end(), "cpu") != devices.end();
}

}  // namespace

Machine ThisMachine() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return {pages > 0 && page > 0 ? pages * page : 0, ComputeThreads(0)};
}

std::vector<ConfigIssue> CheckMachine(const RunConfig& config, int64_t kv_elements_per_token,
                                      const Machine& machine) {
  std::vector<ConfigIssue> issues;
  const double token = kBytesPerElement * static_cast<double>(kv_elements_per_token);
  const auto memory = static_cast<double>(machine.memory_bytes);
  const double cache = token * static_cast<double>(config.rollout.kv_tokens);
  if (UsesCpu(config) && memory > 0 && cache > memory) {
    constexpr double kGib = 1 << 30;
    issues.push_back(
        {"rollout.kv_tokens", 0,
         absl::StrFormat("%d tokens of this model take %.1f GiB or more in each server, and this "
                         "machine has %.1f GiB; valid: at most %d",
                         config.rollout.kv_tokens, cache / kGib, memory / kGib,
                         static_cast<int64_t>(memory / token))});
  }
  const int64_t most = std::max(kAnyThreads, kThreadsPerCore * machine.cores);
  const auto check_threads = [&](const char* field, int64_t threads) {
    if (threads <= most) return;
    issues.push_back({field, 0,
                      absl::StrCat(threads, " threads on a machine with ", machine.cores,
                                   " cores; valid: at most ", most)});
  };
  check_threads("rollout.threads", config.rollout.threads);
  check_threads("learner.threads", config.learner.threads);
  return issues;
}

}  // namespace millrace
