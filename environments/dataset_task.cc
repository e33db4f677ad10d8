#include "environments/dataset_task.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config_schema.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "environments/dataset.h"
#include "environments/problem_random.h"
#include "environments/weighted_order.h"

namespace millrace {
namespace {

// Position -> item of a file, every item once an epoch, in another order each time.
class EpochOrder {
 public:
  EpochOrder(size_t size, uint64_t seed) : order_(size), seed_(seed) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    ProblemRandom random(seed, 0, 0);
    for (size_t i = size; i > 1; --i) {
      std::swap(order_[i - 1], order_[static_cast<size_t>(random.Below(static_cast<int64_t>(i)))]);
    }
  }
  size_t At(uint64_t position) const {
    const uint64_t n = order_.size(), epoch = position / n;
    if (epoch == 0) return order_[position];
    // A step that has no factor in common with n visits every place once.
    ProblemRandom random(seed_, 1, epoch);
    uint64_t step = 0;
    do {
      step = 1 + static_cast<uint64_t>(random.Below(static_cast<int64_t>(n)));
    } while (std::gcd(step, n) != 1);
    return order_[(position % n * step + random.Next() % n) % n];
  }

 private:
  std::vector<size_t> order_;
  const uint64_t seed_;
};

class DatasetTask : public Task {
 public:
  DatasetTask(std::string name, const RunConfig::Data& options, Dataset data, uint64_t seed)
      : name_(std::move(name)),
        options_(options),
        data_(std::move(data)),
        files_(data_.weights),
        eval_order_(data_.eval.size(), seed) {
    for (size_t i = 0; i < data_.train.size(); ++i) {
      train_orders_.emplace_back(data_.train[i].size(), MixWord(seed ^ (i + 1)));
    }
  }

  std::string name() const override { return name_; }

  Problem Make(Split split, uint64_t id) const override {
    const DatasetItem& item =
        split == Split::kEval ? data_.eval[eval_order_.At(id % data_.eval.size())] : TrainItem(id);
    Problem problem;
    problem.id = id;
    problem.source = data_.files[item.file];
    if (options_.chat) {
      if (!options_.system.empty()) problem.messages.push_back({"system", options_.system});
      problem.messages.push_back({"user", item.prompt});
    } else {
      problem.text =
          options_.system.empty() ? item.prompt : absl::StrCat(options_.system, "\n", item.prompt);
    }
    problem.reference = item.reference;
    problem.demonstration = item.demonstration;
    return problem;
  }

  Verdict Verify(const Problem& problem, absl::string_view completion) const override {
    Verdict verdict;
    verdict.correct = data_.verifier->IsRight(problem.reference, completion);
    verdict.reward = verdict.correct ? 1 : 0;
    verdict.components = {{"exact", verdict.reward}};
    return verdict;
  }

  uint64_t Size(Split split) const override {
    if (split == Split::kEval) return data_.eval.size();
    uint64_t size = 0;
    for (const auto& items : data_.train) size += items.size();
    return size;
  }
  std::string Digest() const override { return data_.digest; }
  std::vector<std::string> Notes() const override { return data_.notes; }

 private:
  const DatasetItem& TrainItem(uint64_t id) const {
    const WeightedOrder::Slot slot = files_.At(id);
    return data_.train[slot.source][train_orders_[slot.source].At(slot.ordinal)];
  }

  const std::string name_;
  const RunConfig::Data options_;
  const Dataset data_;
  const WeightedOrder files_;
  const EpochOrder eval_order_;
  std::vector<EpochOrder> train_orders_;
};

void MakeAbsolute(const std::filesystem::path& folder, std::vector<std::string>* files) {
  for (std::string& file : *files) {
    if (!std::filesystem::path(file).is_absolute()) file = (folder / file).string();
  }
}

// `file_data`, which is [data] of `file`, with what `given` says otherwise than the defaults.
absl::StatusOr<RunConfig::Data> PutOnTop(const RunConfig::Data& given,
                                         const RunConfig::Data& file_data,
                                         const std::string& file) {
  const RunConfig defaults;
  RunConfig top, result;  // the schema's fields are those of a whole config
  top.data = given;
  result.data = file_data;
  for (const ConfigField& field : ConfigSchema()) {
    if (field.section != "data") continue;
    const std::string value = ConfigValueText(field, top);
    const std::string usual = ConfigValueText(field, defaults);
    const std::string there = ConfigValueText(field, result);
    if (value != usual) {
      std::visit([&](auto ref) { ref(result) = ref(top); }, field.ref);
    } else if (there != usual &&
               std::count(given.overridden.begin(), given.overridden.end(), field.name) > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(field.full_name(), ": --set gives its default ", usual,
                       ", which can't replace the ", there, " of ", file,
                       "; change that in a copy of the file and name the copy as the task"));
    }
  }
  return std::move(result.data);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Task>> MakeDatasetTask(const std::string& name,
                                                      const RunConfig::Data& data, uint64_t seed) {
  MR_ASSIGN_OR_RETURN(Dataset loaded, LoadDataset(data));
  return std::unique_ptr<Task>(new DatasetTask(name, data, std::move(loaded), seed));
}

absl::StatusOr<std::unique_ptr<Task>> MakeDatasetFileTask(const std::string& name,
                                                          const std::string& file,
                                                          const RunConfig::Data& given,
                                                          uint64_t seed) {
  MR_ASSIGN_OR_RETURN(RunConfig config, LoadConfig(file));
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  MakeAbsolute(folder, &config.data.files);
  MakeAbsolute(folder, &config.data.eval_files);
  MR_ASSIGN_OR_RETURN(const RunConfig::Data data, PutOnTop(given, config.data, file));
  if (data.files.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file,
                     " sets no data.files, so it is no dataset (docs/datasets.md); if it is "
                     "the config of a run, name its task instead: ",
                     config.task.name));
  }
  return MakeDatasetTask(name, data, seed);
}

absl::StatusOr<std::string> FindShippedDataset(const std::string& name) {
  std::vector<std::string> folders;
  if (const char* set = std::getenv("MILLRACE_DATA")) folders.emplace_back(set);
  folders.emplace_back("data");
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    // bin/ of an install folder, of a build folder below the sources, or a test program there.
    const std::filesystem::path above = self.parent_path().parent_path();
    folders.push_back((above / "share" / "millrace" / "data").string());
    folders.push_back((above.parent_path().parent_path() / "data").string());
  }
  for (const std::string& folder : folders) {
    std::string file = JoinPath(JoinPath(folder, name), "dataset.toml");
    if (FileExists(file)) return file;
  }
  return absl::NotFoundError(absl::StrCat("there is no ", name, "/dataset.toml in ",
                                          absl::StrJoin(folders, ", "),
                                          "; $MILLRACE_DATA may name another folder"));
}

}  // namespace millrace
