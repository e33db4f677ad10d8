#include "environments/task.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "environments/coin_sums.h"
#include "environments/log_json.h"
#include "environments/sums.h"

namespace millrace {

absl::StatusOr<std::unique_ptr<Task>> MakeTask(const TaskOptions& options) {
  if (options.name == "coin_sums") return MakeCoinSumsTask(options.seed, options.max_number);
  if (options.name == "log_json") return MakeLogJsonTask(options.seed);
  if (options.name == "sums") return MakeSumsTask(options.seed, options.max_number);
  return absl::NotFoundError(absl::StrCat("no task \"", options.name,
                                          "\"; there are: ", absl::StrJoin(TaskNames(), ", ")));
}

std::vector<std::string> TaskNames() { return {"coin_sums", "log_json", "sums"}; }

}  // namespace millrace
