// JSON lines in and out, for commands in a pipe. Thread-safe (plain functions).
#ifndef MILLRACE_CLI_JSON_LINES_H_
#define MILLRACE_CLI_JSON_LINES_H_

#include <cstdint>
#include <cstdio>
#include <functional>
#include <istream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

using OrderedJson = nlohmann::ordered_json;

inline constexpr size_t kMostLineBytes = size_t{64} << 20;

// Calls `handle` with the number (from 0) and value of every line that is not empty, until one
// fails; the error then starts with "line N: ". INVALID_ARGUMENT when a line is no JSON, nested
// deeper than model/json_checks.h allows or longer than kMostLineBytes, or when there is none at
// all.
absl::Status ForEachJsonLine(
    std::istream& in, const std::function<absl::Status(int64_t, const OrderedJson&)>& handle);

// std::cin, with a word to people who sit before a terminal that is waited for.
std::istream& StandardInput();
// All of `in`. INVALID_ARGUMENT when that is more than kMostLineBytes.
absl::StatusOr<std::string> ReadAll(std::istream& in);

// One line on stdout, at once. Text that is not UTF-8 is replaced. The error is that of stdout (a
// full disk, say).
absl::Status PrintJsonLine(const OrderedJson& value);

// "millrace: <message>" on stderr; returns 1.
int PrintFailure(const absl::Status& status);

// Member `key` as text. INVALID_ARGUMENT when it is there and something else.
absl::StatusOr<std::string> TextMember(const OrderedJson& object, const char* key);
// Token ids from an array of integers of 0 .. vocab_size - 1.
absl::StatusOr<std::vector<int32_t>> TokenIdsOf(const OrderedJson& value, int32_t vocab_size);

}  // namespace millrace

#endif  // MILLRACE_CLI_JSON_LINES_H_
