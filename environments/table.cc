#include "environments/table.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

using Json = nlohmann::json;
using Rows = std::vector<TableRow>;

template <typename... Args>
absl::Status Bad(const std::string& name, int64_t line, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(name, ":", line, ": ", args...));
}

// Well-formed UTF-8 (RFC 3629): no overlong forms, surrogates or values above U+10FFFF.
bool IsUtf8(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i++]);
    if (lead < 0x80) continue;
    const size_t more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if (lead < 0xc2 || lead > 0xf4 || text.size() - i < more) return false;
    const auto next = static_cast<uint8_t>(text[i]);
    const uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (next < low || next > high) return false;
    for (size_t k = 1; k < more; ++k) {
      if ((static_cast<uint8_t>(text[i + k]) & 0xc0) != 0x80) return false;
    }
    i += more;
  }
  return true;
}

const Json* Member(const Json& object, absl::string_view column) {
  if (const auto found = object.find(std::string(column)); found != object.end()) return &*found;
  const size_t dot = column.find('.');
  if (dot == absl::string_view::npos) return nullptr;
  const auto outer = object.find(std::string(column.substr(0, dot)));
  if (outer == object.end() || !outer->is_object()) return nullptr;
  return Member(*outer, column.substr(dot + 1));
}

absl::Status ReadJsonLine(absl::string_view text, const std::vector<std::string>& columns,
                          const std::string& name, TableRow* row) {
  Json object;
  try {
    object = Json::parse(text.begin(), text.end());
  } catch (const Json::parse_error& error) {
    return Bad(name, row->line, "not valid JSON at byte ", error.byte, " of the line");
  }
  if (!object.is_object()) return Bad(name, row->line, "not a JSON object");
  for (const std::string& column : columns) {
    const Json* value = Member(object, column);
    if (value == nullptr) {
      std::vector<std::string> names;
      for (const auto& [key, unused] : object.items()) names.push_back(key);
      return Bad(name, row->line, "no column \"", column,
                 "\"; there are: ", absl::StrJoin(names, ", "));
    }
    row->values.push_back(value->is_string() ? value->get<std::string>() : value->dump());
  }
  return absl::OkStatus();
}

absl::StatusOr<Rows> ParseJsonl(absl::string_view text, const std::string& name,
                                const std::vector<std::string>& columns) {
  Rows rows;
  for (int64_t line = 1; !text.empty(); ++line) {
    const absl::string_view one = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    if (absl::StripAsciiWhitespace(one).empty()) continue;
    TableRow row;
    row.line = line;
    MR_RETURN_IF_ERROR(ReadJsonLine(one, columns, name, &row));
    rows.push_back(std::move(row));
  }
  return rows;
}

// Records of RFC 4180, one at a time.
class CsvReader {
 public:
  CsvReader(absl::string_view text, const std::string& name, char separator)
      : text_(text), name_(name), separator_(separator) {}

  bool AtEnd() const { return text_.empty(); }

  // *line is where the record begins. An empty line is a record of one empty field.
  absl::StatusOr<std::vector<std::string>> Next(int64_t* line) {
    *line = line_;
    std::vector<std::string> fields;
    while (true) {
      std::string field;
      if (absl::ConsumePrefix(&text_, "\"")) {
        MR_RETURN_IF_ERROR(ReadQuoted(*line, &field));
      } else {
        const size_t end = std::min(text_.size(), text_.find_first_of(Ends()));
        field = std::string(text_.substr(0, end));
        text_.remove_prefix(end);
      }
      fields.push_back(std::move(field));
      if (!text_.empty() && text_[0] == separator_) {
        text_.remove_prefix(1);
        continue;
      }
      if (text_.empty() || absl::ConsumePrefix(&text_, "\r\n") ||
          absl::ConsumePrefix(&text_, "\n") || absl::ConsumePrefix(&text_, "\r")) {
        ++line_;
        return fields;
      }
      return Bad(name_, line_, "text after a closing quote in column ", fields.size());
    }
  }

 private:
  std::string Ends() const { return std::string("\r\n") + separator_; }

  absl::Status ReadQuoted(int64_t line, std::string* field) {
    while (true) {
      const size_t quote = text_.find('"');
      if (quote == absl::string_view::npos) {
        return Bad(name_, line, "a quoted field is not closed");
      }
      absl::StrAppend(field, text_.substr(0, quote));
      line_ += std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(quote), '\n');
      text_.remove_prefix(quote + 1);
      if (!absl::ConsumePrefix(&text_, "\"")) return absl::OkStatus();
      *field += '"';
    }
  }

  absl::string_view text_;
  const std::string& name_;
  const char separator_;
  int64_t line_ = 1;
};

absl::StatusOr<Rows> ParseCsv(absl::string_view text, const std::string& name, char separator,
                              const std::vector<std::string>& columns) {
  CsvReader reader(text, name, separator);
  int64_t line = 0;
  std::vector<std::string> header;
  if (!reader.AtEnd()) {
    MR_ASSIGN_OR_RETURN(header, reader.Next(&line));
  }
  std::vector<size_t> places;
  for (const std::string& column : columns) {
    const auto found = std::find(header.begin(), header.end(), column);
    if (found == header.end()) {
      return Bad(name, 1, "no column \"", column, "\"; there are: ", absl::StrJoin(header, ", "));
    }
    places.push_back(static_cast<size_t>(found - header.begin()));
  }
  Rows rows;
  while (!reader.AtEnd()) {
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> fields, reader.Next(&line));
    if (fields.size() == 1 && fields[0].empty()) continue;
    if (fields.size() != header.size()) {
      return Bad(name, line, fields.size(), " fields, but the header has ", header.size());
    }
    TableRow row;
    row.line = line;
    for (const size_t place : places) row.values.push_back(fields[place]);
    rows.push_back(std::move(row));
  }
  return rows;
}

absl::Status CheckUtf8(absl::string_view text, const std::string& name) {
  int64_t line = 1;
  for (size_t begin = 0; begin < text.size(); ++line) {
    const size_t end = std::min(text.size(), text.find('\n', begin));
    if (!IsUtf8(text.substr(begin, end - begin))) return Bad(name, line, "not valid UTF-8");
    begin = end + 1;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Rows> ParseTable(absl::string_view text, const std::string& name,
                                const std::vector<std::string>& columns) {
  const std::string lower = absl::AsciiStrToLower(name);
  const bool jsonl = absl::EndsWith(lower, ".jsonl") || absl::EndsWith(lower, ".ndjson");
  const bool csv = absl::EndsWith(lower, ".csv"), tsv = absl::EndsWith(lower, ".tsv");
  if (!jsonl && !csv && !tsv) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": not .jsonl, .ndjson, .csv or .tsv",
                     absl::EndsWith(lower, ".parquet")
                         ? "; docs/datasets.md has a line that turns Parquet into JSONL"
                         : ""));
  }
  absl::ConsumePrefix(&text, "\xef\xbb\xbf");  // byte order mark
  MR_RETURN_IF_ERROR(CheckUtf8(text, name));
  MR_ASSIGN_OR_RETURN(Rows rows, jsonl ? ParseJsonl(text, name, columns)
                                       : ParseCsv(text, name, csv ? ',' : '\t', columns));
  if (rows.empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": no rows"));
  return rows;
}

absl::StatusOr<Rows> ReadTable(const std::string& path, const std::vector<std::string>& columns) {
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseTable(text, path, columns);
}

}  // namespace millrace
