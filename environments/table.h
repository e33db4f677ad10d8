// Columns of a JSONL, CSV or TSV file. Thread-safe (plain functions).
#ifndef MILLRACE_ENVIRONMENTS_TABLE_H_
#define MILLRACE_ENVIRONMENTS_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

struct TableRow {
  int64_t line = 0;                 // of the file, from 1; where the row begins
  std::vector<std::string> values;  // in the order of the columns asked for
};

// JSONL (.jsonl, .ndjson): one object a line; a value that is no string is given as its JSON text;
// "a.b" is member b of the object in a, unless there is a member "a.b". CSV and TSV (.csv, .tsv):
// RFC 4180 with a header line. Empty lines are skipped. NOT_FOUND: no such file. INVALID_ARGUMENT:
// another format, a line that is broken or not UTF-8 ("file:line: ..."), a column that is missing
// (with those there are), no row at all.
absl::StatusOr<std::vector<TableRow>> ReadTable(const std::string& path,
                                                const std::vector<std::string>& columns);
// The same from text; `name` is that of the file.
absl::StatusOr<std::vector<TableRow>> ParseTable(absl::string_view text, const std::string& name,
                                                 const std::vector<std::string>& columns);

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_TABLE_H_
