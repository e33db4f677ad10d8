// inspect: what a model on disk is, and where it fits.
#include <filesystem>
#include <string>
#include <system_error>

#include "cli/commands.h"
#include "cli/json_lines.h"
#include "cli/memory_fit.h"
#include "cli/run_dir.h"
#include "model/adapter.h"
#include "model/inspect.h"

namespace millrace {
namespace {

// What is to be inspected: of a run its newest checkpoint, and files and adapters as they are.
absl::StatusOr<std::string> FindInspected(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error) || IsAdapterDir(path)) return path;
  return FindModelDir(path);
}

}  // namespace

int InspectCommand(const std::string& path) {
  const absl::StatusOr<std::string> model = FindInspected(path);
  if (!model.ok()) return PrintFailure(model.status());
  const absl::StatusOr<ModelSummary> summary = InspectModel(*model);
  if (!summary.ok()) return PrintFailure(summary.status());
  nlohmann::ordered_json json = ModelSummaryToJson(*summary);
  if (summary->train_bytes > 0) json["fits"] = MemoryFit(*summary);
  const absl::Status printed = PrintJsonLine(json);
  return printed.ok() ? 0 : PrintFailure(printed);
}

}  // namespace millrace
