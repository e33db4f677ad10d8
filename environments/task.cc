#include "environments/task.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config_schema.h"
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
    if (part.name != "dataset") own.data = RunConfig::Data();
    MR_ASSIGN_OR_RETURN(std::unique_ptr<Task> task, MakeTask(own));
    parts.push_back({std::move(task), part.weight});
  }
  return MakeMixtureTask(std::move(parts));
}

// Files, and what --set gave, are meant to be read. Other fields of [data] may stand in a config
// whose task is changed for a try.
absl::Status CheckDataIsRead(const TaskOptions& options) {
  if (ReadsData(options)) return absl::OkStatus();
  const std::vector<std::string>& set = options.data.overridden;
  const RunConfig defaults;
  RunConfig config;  // the schema's fields are those of a whole config
  config.data = options.data;
  for (const ConfigField& field : ConfigSchema()) {
    if (field.section != "data") continue;
    const bool is_meant = field.name == "files" || field.name == "eval_files" ||
                          std::count(set.begin(), set.end(), field.name) > 0;
    if (!is_meant || ConfigValueText(field, config) == ConfigValueText(field, defaults)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        field.full_name(), " is set, but task ", options.name,
        options.name == "mixture" ? " has no part \"dataset\" to read it (other parts keep to "
                                    "their own files); leave it out, or add that part"
                                  : " does not read it; leave it out, or set task.name to "
                                    "\"dataset\""));
  }
  return absl::OkStatus();
}

}  // namespace

bool ReadsData(const TaskOptions& options) {
  const std::string& name = options.name;
  if (name != "mixture") {
    return name == "dataset" || name == "gsm8k" || absl::EndsWith(name, ".toml");
  }
  return std::any_of(options.parts.begin(), options.parts.end(), [](const std::string& text) {
    const absl::StatusOr<WeightedName> part = ParseWeightedName(text);
    return part.ok() && part->name == "dataset";
  });
}

absl::StatusOr<std::unique_ptr<Task>> MakeTask(const TaskOptions& options) {
  const std::string& name = options.name;
  const std::vector<std::string> names = TaskNames();
  if (!absl::EndsWith(name, ".toml") && std::count(names.begin(), names.end(), name) == 0) {
    return absl::NotFoundError(absl::StrCat("no task \"", name,
                                            "\"; there are: ", absl::StrJoin(names, ", "),
                                            ", and .toml files with a [data] section"));
  }
  MR_RETURN_IF_ERROR(CheckDataIsRead(options));
  if (name == "calculator") return MakeCalculatorTask(options.seed, options.partial_credit);
  if (name == "coin_sums") return MakeCoinSumsTask(options.seed, options.max_number);
  if (name == "dataset") return MakeDatasetTask(name, options.data, options.seed);
  if (name == "dates") return MakeDatesTask(options.seed, options.partial_credit);
  if (name == "gsm8k") {
    MR_ASSIGN_OR_RETURN(const std::string file, FindShippedDataset(name));
    return MakeDatasetFileTask(name, file, options.data, options.seed);
  }
  if (name == "log_json") return MakeLogJsonTask(options.seed);
  if (name == "mixture") return MakeMixture(options);
  if (name == "order_json") return MakeOrderJsonTask(options.seed, options.partial_credit);
  if (name == "sentence_json") return MakeSentenceJsonTask(options.seed, options.partial_credit);
  if (name == "sums") return MakeSumsTask(options.seed, options.max_number);
  return MakeDatasetFileTask(name, name, options.data, options.seed);
}

std::vector<std::string> TaskNames() {
  return {"calculator", "coin_sums", "dataset",    "dates",         "gsm8k",
          "log_json",   "mixture",   "order_json", "sentence_json", "sums"};
}

}  // namespace millrace
