// Task order_json: "I would like 3 eggs and 4 figs." to {"eggs": 3, "figs": 4}, with one worked
// example. Orders come in four phrasings.
#ifndef MILLRACE_ENVIRONMENTS_ORDER_JSON_H_
#define MILLRACE_ENVIRONMENTS_ORDER_JSON_H_

#include <cstdint>
#include <memory>

#include "environments/task.h"

namespace millrace {

// `correct` as in environments/sentence_json.h, with the two things ordered as keys and integer
// counts. The baseline is a regular expression for the first phrasing.
std::unique_ptr<Task> MakeOrderJsonTask(uint64_t seed, bool partial_credit);

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_ORDER_JSON_H_
