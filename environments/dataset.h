// The problems of JSONL and CSV files: columns to prompts, what is held out, what is left out.
// Values; loading is a pure function of the options and the files.
#ifndef MILLRACE_ENVIRONMENTS_DATASET_H_
#define MILLRACE_ENVIRONMENTS_DATASET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config.h"
#include "environments/verifier.h"

namespace millrace {

struct DatasetItem {
  std::string prompt;         // the user message
  std::string reference;      // for the verifier
  std::string demonstration;  // empty = none
  size_t file = 0;            // which of Dataset::files
  int64_t line = 0;
};

struct Dataset {
  std::vector<std::string> files;               // train files, then eval files
  std::vector<double> weights;                  // of the train files
  std::vector<std::vector<DatasetItem>> train;  // of each train file, in its order
  std::vector<DatasetItem> eval;
  std::unique_ptr<Verifier> verifier;
  std::string digest;  // of prompts, references and split: 16 hex digits
  // Counts for people.
  int64_t duplicates = 0;       // rows whose prompt an earlier row has, left out
  int64_t contradictions = 0;   // of those, with another answer
  int64_t near_duplicates = 0;  // train problems left out, or moved, for one of another split
  std::vector<std::string> notes;
};

// Two rows are the same problem when their prompts are, but for white space. Held out are the rows
// of eval_files, or those whose prompt hashes into eval_fraction. Prompts of similarity
// near_duplicates or more (environments/near_duplicates.h, on the columns' text without the words
// of the template) stay together: with eval_files, what resembles a held-out prompt is left out of
// training; without, the whole cluster goes where its member of the lowest hash goes.
//
// INVALID_ARGUMENT names file and line of a broken row, a missing column or placeholder, a prompt
// that is empty, an answer that the verifier can't use, or a prompt that is in both files and
// eval_files; and says which side of the split is empty.
absl::StatusOr<Dataset> LoadDataset(const RunConfig::Data& options);

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_DATASET_H_
