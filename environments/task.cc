#include "environments/task.h"

#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "environments/calculator.h"
#include "environments/coin_sums.h"
#include "environments/dataset_task.h"
#include "environments/dates.h"
#include "environments/log_json.h"
#include "environments/mixture.h"
#include "environments/order_json.h"
#include "environments/sentence_json.h"
#include "environments/sums.h"
#include "environments/weighted_order.h"

namespace millrace {
namespace {

// What a mixture is made of when the config names no parts.
constexpr const char* kDefaultParts[] = {"sentence_json", "order_json", "dates", "calculator"};

absl::StatusOr<std::unique_ptr<Task>> MakeMixture(const TaskOptions& options) {
  std::vector<std::string> names = options.parts;
  if (names.empty()) names.assign(std::begin(kDefaultParts), std::end(kDefaultParts));
  std::vector<MixturePart> parts;
  for (const std::string& text : names) {
    MR_ASSIGN_OR_RETURN(const WeightedName part, ParseWeightedName(text));
    if (part.name == "mixture") {
      return absl::InvalidArgumentError("task.parts: a mixture can't be a part of itself");
    }
    TaskOptions own = options;
    own.name = part.name;
    MR_ASSIGN_OR_RETURN(std::unique_ptr<Task> task, MakeTask(own));
    parts.push_back({std::move(task), part.weight});
  }
  return MakeMixtureTask(std::move(parts));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Task>> MakeTask(const TaskOptions& options) {
  const std::string& name = options.name;
  if (name == "calculator") return MakeCalculatorTask(options.seed, options.partial_credit);
  if (name == "coin_sums") return MakeCoinSumsTask(options.seed, options.max_number);
  if (name == "dataset") return MakeDatasetTask(name, options.data, options.seed);
  if (name == "dates") return MakeDatesTask(options.seed, options.partial_credit);
  if (name == "gsm8k") {
    MR_ASSIGN_OR_RETURN(const std::string file, FindShippedDataset(name));
    return MakeDatasetFileTask(name, file, options.seed);
  }
  if (name == "log_json") return MakeLogJsonTask(options.seed);
  if (name == "mixture") return MakeMixture(options);
  if (name == "order_json") return MakeOrderJsonTask(options.seed, options.partial_credit);
  if (name == "sentence_json") return MakeSentenceJsonTask(options.seed, options.partial_credit);
  if (name == "sums") return MakeSumsTask(options.seed, options.max_number);
  if (absl::EndsWith(name, ".toml")) return MakeDatasetFileTask(name, name, options.seed);
  return absl::NotFoundError(absl::StrCat("no task \"", name,
                                          "\"; there are: ", absl::StrJoin(TaskNames(), ", "),
                                          ", and .toml files with a [data] section"));
}

std::vector<std::string> TaskNames() {
  return {"calculator", "coin_sums", "dataset",    "dates",         "gsm8k",
          "log_json",   "mixture",   "order_json", "sentence_json", "sums"};
}

}  // namespace millrace
