// JSON that a model wrote as its answer: read strictly, compared exactly. Thread-safe.
#ifndef MILLRACE_ENVIRONMENTS_JSON_ANSWER_H_
#define MILLRACE_ENVIRONMENTS_JSON_ANSWER_H_

#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"

namespace millrace {

// The one JSON value of `text`, without surrounding white space and an optional ``` fence.
// Discarded (is_discarded()) when there is anything else in it, when it is not UTF-8, nested more
// than 64 deep, or an object of it repeats a key.
nlohmann::json ParseJsonAnswer(absl::string_view text);

// Equality that tells 31 from 31.0 and "31". Keys of objects may come in any order.
bool SameJson(const nlohmann::json& a, const nlohmann::json& b);

// How much of the object `wanted` is in the object `got`: keys with the same value, over the keys
// of the one that has more. In [0, 1]; 1 exactly when they are the same.
double MatchingFields(const nlohmann::json& got, const nlohmann::json& wanted);

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_JSON_ANSWER_H_
