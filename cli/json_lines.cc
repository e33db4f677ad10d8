#include "cli/json_lines.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace millrace {

absl::Status ForEachJsonLine(
    std::istream& in, const std::function<absl::Status(int64_t, const OrderedJson&)>& handle) {
  std::string line;
  int64_t count = 0;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    const OrderedJson value = OrderedJson::parse(line, nullptr, /*allow_exceptions=*/false);
    const absl::Status status = value.is_discarded() ? absl::InvalidArgumentError("not valid JSON")
                                                     : handle(count++, value);
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("line ", number, ": ", status.message()));
    }
  }
  return count > 0 ? absl::OkStatus()
                   : absl::InvalidArgumentError("nothing on stdin; one JSON value a line is read");
}

void PrintJsonLine(const OrderedJson& value) {
  std::printf("%s\n", value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace).c_str());
  std::fflush(stdout);
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
