// Tasks made of files: "dataset" ([data] of the run's config), a file that holds a [data] section,
// and the datasets that are shipped (data/<name>/dataset.toml).
#ifndef MILLRACE_ENVIRONMENTS_DATASET_TASK_H_
#define MILLRACE_ENVIRONMENTS_DATASET_TASK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config.h"
#include "environments/task.h"

namespace millrace {

// Train ids go through each file in an order of its own for every epoch, files in turn by weight;
// eval ids through all held-out problems in one order. Both follow from `seed`. Reward 1 (component
// "exact") when the verifier says so.
absl::StatusOr<std::unique_ptr<Task>> MakeDatasetTask(const std::string& name,
                                                      const RunConfig::Data& data, uint64_t seed);

// `file` is TOML with a [data] section, whose relative paths are from the file's folder. What
// `given` says otherwise than the defaults goes on top of it, with relative paths from the working
// directory. INVALID_ARGUMENT when no files come of that, or when a field of given.overridden has
// its default and the file says otherwise: the config that a run writes down could not tell such a
// field from one that was left alone.
absl::StatusOr<std::unique_ptr<Task>> MakeDatasetFileTask(const std::string& name,
                                                          const std::string& file,
                                                          const RunConfig::Data& given,
                                                          uint64_t seed);

// Where data/<name>/dataset.toml is: below $MILLRACE_DATA, ./data, the source tree or the install
// folder that this program is in. NOT_FOUND lists where it was looked for.
absl::StatusOr<std::string> FindShippedDataset(const std::string& name);

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_DATASET_TASK_H_
