#include "cli/memory_fit.h"

#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

struct Memory {
  std::string name;
  int64_t bytes = 0;
  bool host = false;  // not a card's
};

std::vector<Memory> Memories() {
  constexpr int64_t kGiB = int64_t{1} << 30;
  std::vector<Memory> memories;
  const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
  if (pages > 0 && page > 0) memories.push_back({"this machine", pages * page, true});
  for (const int64_t gib : {16, 24, 32, 80}) {
    memories.push_back({absl::StrCat(gib, " GiB"), gib * kGiB});
  }
  return memories;
}

}  // namespace

nlohmann::ordered_json MemoryFit(const ModelSummary& summary) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& [name, bytes, host] : Memories()) {
    // A tenth is left to activations, logits and the system.
    const int64_t usable = bytes / 10 * 9;
    const int64_t left = usable - summary.rollout_bytes;
    // The learner's copy of the version that the server takes: the weights, in memory of the host.
    const int64_t version = host ? summary.train_bytes / 4 : 0;
    rows.push_back(
        {{"memory", name},
         {"bytes", bytes},
         {"trains", summary.train_bytes <= usable},
         {"samples", left > 0},
         {"trains_and_samples", summary.train_bytes + version < left},
         {"kv_tokens",
          summary.kv_bytes_per_token > 0 && left > 0 ? left / summary.kv_bytes_per_token : 0}});
  }
  return rows;
}

}  // namespace millrace
