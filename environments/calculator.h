// Task calculator: "what is 43 minus 21?" to the call {"op": "sub", "a": 43, "b": 21}, with a
// worked example of each operation (add, sub, mul). Numbers are 2 to 99.
#ifndef MILLRACE_ENVIRONMENTS_CALCULATOR_H_
#define MILLRACE_ENVIRONMENTS_CALCULATOR_H_

#include <cstdint>
#include <memory>

#include "environments/task.h"

namespace millrace {

// `correct` as in environments/sentence_json.h, with keys op, a, b; a and b are integers. No
// baseline: a regular expression is always right.
std::unique_ptr<Task> MakeCalculatorTask(uint64_t seed, bool partial_credit);

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_CALCULATOR_H_
