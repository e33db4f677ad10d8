#include "environments/dataset.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "environments/near_duplicates.h"
#include "environments/pattern.h"
#include "environments/problem_random.h"
#include "environments/prompt_template.h"
#include "environments/table.h"
#include "environments/weighted_order.h"

namespace millrace {
namespace {

struct Row {
  DatasetItem item;
  std::string key;      // the prompt with single spaces: equal = the same problem
  std::string content;  // the columns' text, for similarity
  bool held_out = false;
  bool left_out = false;
};

std::string SingleSpaced(absl::string_view text) {
  return absl::StrJoin(absl::StrSplit(text, absl::ByAnyChar(" \t\r\n"), absl::SkipEmpty()), " ");
}

// Sets that grow together; the lowest index stands for a set.
class UnionFind {
 public:
  explicit UnionFind(size_t size) : parent_(size) {
    std::iota(parent_.begin(), parent_.end(), size_t{0});
  }
  size_t Find(size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void Join(size_t a, size_t b) {
    a = Find(a);
    b = Find(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<size_t> parent_;
};

class Loader {
 public:
  explicit Loader(const RunConfig::Data& options) : options_(options) {}

  absl::StatusOr<Dataset> Run() {
    MR_RETURN_IF_ERROR(Prepare());
    for (const std::string& text : options_.files) {
      MR_ASSIGN_OR_RETURN(const WeightedName file, ParseWeightedName(text));
      data_.weights.push_back(file.weight);
      MR_RETURN_IF_ERROR(ReadFileRows(file.name, /*held_out=*/false));
    }
    for (const std::string& file : options_.eval_files) {
      MR_RETURN_IF_ERROR(ReadFileRows(file, /*held_out=*/true));
    }
    MR_RETURN_IF_ERROR(LeaveOutDuplicates());
    Split();
    return Finish();
  }

 private:
  absl::Status Prepare() {
    if (options_.files.empty()) {
      return absl::InvalidArgumentError(
          "task dataset has no files; set data.files, for example [\"train.jsonl\"]");
    }
    MR_ASSIGN_OR_RETURN(data_.verifier, MakeVerifier(options_.verifier, options_.pattern));
    MR_ASSIGN_OR_RETURN(template_, PromptTemplate::Parse(options_.prompt));
    for (const std::string& name : template_.names()) {
      columns_.push_back(name == "question" ? options_.question : name);
      if (columns_.back() == options_.answer) {
        return absl::InvalidArgumentError(absl::StrCat("data.prompt shows the column ",
                                                       options_.answer, ", which is the answer"));
      }
    }
    columns_.push_back(options_.answer);
    if (!options_.demonstration.empty()) columns_.push_back(options_.demonstration);
    // "<<48/2=24>>", the calculator's notes of GSM8K, are not part of an answer.
    MR_ASSIGN_OR_RETURN(notes_, Pattern::Compile("<<[^<>\\n]*>>"));
    return absl::OkStatus();
  }

  absl::Status ReadFileRows(const std::string& file, bool held_out) {
    MR_ASSIGN_OR_RETURN(const std::vector<TableRow> table, ReadTable(file, columns_));
    const size_t number = data_.files.size();
    data_.files.push_back(file);
    for (const TableRow& cells : table) {
      absl::StatusOr<Row> row = MakeRow(cells.values);
      if (!row.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(file, ":", cells.line, ": ", row.status().message()));
      }
      row->item.file = number;
      row->item.line = cells.line;
      row->held_out = held_out;
      rows_.push_back(*std::move(row));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Row> MakeRow(const std::vector<std::string>& cells) const {
    const size_t names = template_.names().size();
    const std::vector<std::string> values(cells.begin(),
                                          cells.begin() + static_cast<ptrdiff_t>(names));
    Row row;
    row.item.prompt = template_.Fill(values);
    row.content = absl::StrJoin(values, "\n");
    row.key = SingleSpaced(row.item.prompt);
    if (absl::StripAsciiWhitespace(row.content).empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the prompt is empty (columns ", absl::StrJoin(columns_, ", "), ")"));
    }
    const std::string& answer = cells[names];
    MR_ASSIGN_OR_RETURN(row.item.reference, data_.verifier->Reference(answer));
    const bool own = !options_.demonstration.empty();
    const std::string shown = notes_->Replace(own ? cells[names + 1] : answer, "");
    const bool right = data_.verifier->IsRight(row.item.reference, shown);
    if (own && !right) {
      return absl::InvalidArgumentError(
          absl::StrCat("the verifier ", options_.verifier, " refuses the demonstration"));
    }
    if (right) row.item.demonstration = shown;
    return row;
  }

  std::string Place(const Row& row) const {
    return absl::StrCat(data_.files[row.item.file], ":", row.item.line);
  }

  // Keeps the first of the rows with one key. Held-out files come last, so a row of theirs that
  // is there already and not held out is an overlap.
  absl::Status LeaveOutDuplicates() {
    std::unordered_map<std::string, size_t> first;
    int64_t overlaps = 0;
    std::string example;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const auto [found, inserted] = first.emplace(rows_[i].key, i);
      if (inserted) continue;
      const Row& other = rows_[found->second];
      if (rows_[i].held_out && !other.held_out) {
        if (overlaps++ == 0) example = absl::StrCat(Place(rows_[i]), " = ", Place(other));
        continue;
      }
      rows_[i].left_out = true;
      ++data_.duplicates;
      if (!data_.verifier->IsRight(rows_[i].item.reference, other.item.reference) &&
          data_.contradictions++ == 0) {
        contradiction_ = absl::StrCat(Place(rows_[i]), " and ", Place(other));
      }
    }
    if (overlaps == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(overlaps, " problem", overlaps == 1 ? " is" : "s are",
                     " both trained on and held out (first: ", example,
                     "); take them out of data.files or data.eval_files"));
  }

  void Split() {
    UnionFind clusters(rows_.size());
    std::vector<std::pair<size_t, size_t>> pairs;
    if (options_.near_duplicates > 0) {
      std::vector<std::vector<uint64_t>> sets;
      for (const Row& row : rows_) {
        sets.push_back(row.left_out ? std::vector<uint64_t>() : Shingles(row.content));
      }
      pairs = NearDuplicatePairs(sets, options_.near_duplicates);
      for (const auto& [a, b] : pairs) clusters.Join(a, b);
    }
    if (options_.eval_files.empty()) {
      SplitByHash(&clusters);
    } else {
      LeaveOutLikeHeldOut(pairs);
    }
    NoteClusters(&clusters);
  }

  void SplitByHash(UnionFind* clusters) {
    std::vector<uint64_t> hashes;
    for (const Row& row : rows_) hashes.push_back(HashText(row.key));
    std::vector<uint64_t> lowest = hashes;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].left_out) continue;
      uint64_t& least = lowest[clusters->Find(i)];
      least = std::min(least, hashes[i]);
    }
    // A hash of the hash: the lowest of several is not spread evenly. The top 32 bits will do.
    const auto limit = static_cast<uint64_t>(std::ldexp(options_.eval_fraction, 32));
    const auto held_out = [limit](uint64_t hash) { return MixWord(hash + 1) >> 32 < limit; };
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].left_out) continue;
      rows_[i].held_out = held_out(lowest[clusters->Find(i)]);
      if (rows_[i].held_out != held_out(hashes[i])) ++data_.near_duplicates;
    }
  }

  void LeaveOutLikeHeldOut(const std::vector<std::pair<size_t, size_t>>& pairs) {
    for (const auto& [a, b] : pairs) {
      if (rows_[a].held_out == rows_[b].held_out) continue;
      Row& train = rows_[a].held_out ? rows_[b] : rows_[a];
      const Row& eval = rows_[a].held_out ? rows_[a] : rows_[b];
      if (train.left_out) continue;
      train.left_out = true;
      if (data_.near_duplicates++ == 0) near_ = absl::StrCat(Place(train), " ~ ", Place(eval));
    }
  }

  void NoteClusters(UnionFind* clusters) {
    std::map<size_t, size_t> sizes;
    size_t largest = 0;
    for (size_t i = 0; i < rows_.size(); ++i)
      largest = std::max(largest, ++sizes[clusters->Find(i)]);
    if (largest > 10 && largest * 10 > rows_.size()) {
      data_.notes.push_back(absl::StrCat(
          "warning: ", largest, " of ", rows_.size(),
          " prompts resemble each other and stay on one side of the split; if they are different "
          "problems in the same words, raise data.near_duplicates (now ",
          options_.near_duplicates, ") or set it to 0"));
    }
  }

  absl::StatusOr<Dataset> Finish() {
    uint64_t digest = 0;
    int64_t train = 0;
    data_.train.resize(data_.weights.size());
    for (Row& row : rows_) {
      if (row.left_out) continue;
      for (const std::string* text : {&row.item.prompt, &row.item.reference}) {
        digest = MixWord(digest ^ HashText(*text)) + (row.held_out ? 1 : 2);
      }
      train += row.held_out ? 0 : 1;
      (row.held_out ? data_.eval : data_.train[row.item.file]).push_back(std::move(row.item));
    }
    for (const std::string& text : {options_.system, options_.verifier, options_.pattern}) {
      digest = MixWord(digest ^ HashText(text)) + 3;
    }
    data_.digest = absl::StrFormat("%016x", digest);
    MR_RETURN_IF_ERROR(CheckNotEmpty());
    WriteNotes(train);
    return std::move(data_);
  }

  absl::Status CheckNotEmpty() const {
    for (size_t i = 0; i < data_.train.size(); ++i) {
      if (!data_.train[i].empty()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          data_.files[i], ": no problem is left to train on (", data_.duplicates, " duplicates, ",
          data_.near_duplicates, " near-duplicates of held-out ones, the rest held out)"));
    }
    if (data_.eval.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("no problem of ", absl::StrJoin(data_.files, ", "), " (", rows_.size(),
                       " rows) is held out; raise data.eval_fraction (now ", options_.eval_fraction,
                       "), set data.eval_files, or give more rows"));
    }
    return absl::OkStatus();
  }

  void WriteNotes(int64_t train) {
    std::vector<std::string>& notes = data_.notes;
    notes.insert(notes.begin(),
                 absl::StrCat(train, " problems to train on, ", data_.eval.size(), " held out"));
    if (data_.duplicates > 0) {
      notes.push_back(absl::StrCat(data_.duplicates, " rows repeat an earlier prompt, left out"));
    }
    if (data_.contradictions > 0) {
      notes.push_back(absl::StrCat("warning: ", data_.contradictions,
                                   " of them have another answer (first: ", contradiction_, ")"));
    }
    if (data_.near_duplicates > 0) {
      notes.push_back(options_.eval_files.empty()
                          ? absl::StrCat(data_.near_duplicates,
                                         " near-duplicates put on the side of their like")
                          : absl::StrCat(data_.near_duplicates,
                                         " near-duplicates of held-out problems left out of "
                                         "training (first: ",
                                         near_, ")"));
    }
  }

  const RunConfig::Data& options_;
  PromptTemplate template_;
  std::vector<std::string> columns_;  // of the template, the answer, the demonstration
  std::unique_ptr<Pattern> notes_;
  std::vector<Row> rows_;
  std::string contradiction_, near_;  // the first of each, for the notes
  Dataset data_;
};

}  // namespace

absl::StatusOr<Dataset> LoadDataset(const RunConfig::Data& options) {
  return Loader(options).Run();
}

}  // namespace millrace
