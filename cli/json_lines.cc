#include "cli/json_lines.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "model/json_checks.h"

namespace millrace {

namespace {

// std::getline for lines of at most kMostLineBytes; false at the end of the input.
absl::StatusOr<bool> ReadLine(std::istream& in, std::string* line) {
  line->clear();
  std::streambuf& buffer = *in.rdbuf();
  int c = buffer.sbumpc();
  if (c == EOF) return false;
  for (; c != EOF && c != '\n'; c = buffer.sbumpc()) {
    if (line->size() == kMostLineBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("longer than the ", kMostLineBytes, " bytes that a line may have"));
    }
    line->push_back(static_cast<char>(c));
  }
  return true;
}

absl::StatusOr<OrderedJson> ParseLine(const std::string& line) {
  if (const int nesting = JsonNesting(line); nesting > kMostJsonNesting) {
    return absl::InvalidArgumentError(
        absl::StrCat("JSON nested ", nesting, " deep (at most ", kMostJsonNesting, ")"));
  }
  OrderedJson value = OrderedJson::parse(line, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return absl::InvalidArgumentError("not valid JSON");
  return value;
}

}  // namespace

absl::Status ForEachJsonLine(
    std::istream& in, const std::function<absl::Status(int64_t, const OrderedJson&)>& handle) {
  std::string line;
  int64_t count = 0;
  for (int64_t number = 1;; ++number) {
    const absl::StatusOr<bool> more = ReadLine(in, &line);
    absl::Status status = more.status();
    if (status.ok() && !*more) break;
    if (status.ok() && absl::StripAsciiWhitespace(line).empty()) continue;
    if (status.ok()) {
      const absl::StatusOr<OrderedJson> value = ParseLine(line);
      status = value.ok() ? handle(count++, *value) : value.status();
    }
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("line ", number, ": ", status.message()));
    }
  }
  return count > 0 ? absl::OkStatus()
                   : absl::InvalidArgumentError("nothing on stdin; one JSON value a line is read");
}

std::istream& StandardInput() {
  if (isatty(STDIN_FILENO) != 0) {
    std::fprintf(stderr,
                 "millrace: reading JSON, one value a line, from the terminal; "
                 "Ctrl-D ends\n");
  }
  return std::cin;
}

absl::StatusOr<std::string> ReadAll(std::istream& in) {
  std::string all;
  std::streambuf& buffer = *in.rdbuf();
  for (int c = buffer.sbumpc(); c != EOF; c = buffer.sbumpc()) {
    if (all.size() == kMostLineBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("more than ", kMostLineBytes, " bytes on stdin"));
    }
    all.push_back(static_cast<char>(c));
  }
  return all;
}

absl::Status PrintJsonLine(const OrderedJson& value) {
  const std::string line = value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
  if (std::fwrite(line.data(), 1, line.size(), stdout) == line.size() && std::fflush(stdout) == 0) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("writing to stdout: ", std::strerror(errno)));
}

int PrintFailure(const absl::Status& status) {
  std::fprintf(stderr, "millrace: %s\n", std::string(status.message()).c_str());
  return 1;
}

absl::StatusOr<std::string> TextMember(const OrderedJson& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is not a string"));
  }
  return found->get<std::string>();
}

absl::StatusOr<std::vector<int32_t>> TokenIdsOf(const OrderedJson& value, int32_t vocab_size) {
  if (!value.is_array()) return absl::InvalidArgumentError("token ids are not an array");
  std::vector<int32_t> ids;
  for (const OrderedJson& item : value) {
    if (!item.is_number_integer() || item.get<int64_t>() < 0 || item.get<int64_t>() >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat("token id ", item.dump(), " at ", ids.size(),
                                                     " is not one of 0 to ", vocab_size - 1));
    }
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

}  // namespace millrace
