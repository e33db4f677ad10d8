// inspect: what a model on disk is, and where it fits.
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/json_lines.h"
#include "cli/run_dir.h"
#include "common/files.h"
#include "model/inspect.h"

namespace millrace {
namespace {

// Memory of cards and of this machine against what the model takes: whether training on one fits,
// and how many tokens of K/V a rollout server has room for.
nlohmann::ordered_json WhatFits(const ModelSummary& summary) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  std::vector<std::pair<std::string, int64_t>> machines = {
      {"16 GiB", 16 * kGiB}, {"24 GiB", 24 * kGiB}, {"32 GiB", 32 * kGiB}, {"80 GiB", 80 * kGiB}};
  const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
  if (pages > 0 && page > 0) machines.insert(machines.begin(), {"this machine", pages * page});
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& [name, bytes] : machines) {
    // A tenth is left to activations, logits and the system.
    const int64_t usable = bytes / 10 * 9;
    const int64_t left = usable - summary.rollout_bytes;
    rows.push_back(
        {{"memory", name},
         {"bytes", bytes},
         {"trains", summary.train_bytes <= usable},
         {"samples", left > 0},
         {"kv_tokens",
          summary.kv_bytes_per_token > 0 && left > 0 ? left / summary.kv_bytes_per_token : 0}});
  }
  return rows;
}

}  // namespace

int InspectCommand(const std::string& path) {
  // A run's newest checkpoint, where it is a run.
  const std::string latest = JoinPath(path, "checkpoints/latest");
  const absl::StatusOr<std::string> model =
      FileExists(latest) ? FindModelDir(path) : absl::StatusOr<std::string>(path);
  if (!model.ok()) return PrintFailure(model.status());
  const absl::StatusOr<ModelSummary> summary = InspectModel(*model);
  if (!summary.ok()) return PrintFailure(summary.status());
  nlohmann::ordered_json json = ModelSummaryToJson(*summary);
  if (summary->train_bytes > 0) json["fits"] = WhatFits(*summary);
  const absl::Status printed = PrintJsonLine(json);
  return printed.ok() ? 0 : PrintFailure(printed);
}

}  // namespace millrace
