// Task dates: "March 4, 2021" to 2021-03-04, with two worked examples, for days of 1950 to 2049.
#ifndef MILLRACE_ENVIRONMENTS_DATES_H_
#define MILLRACE_ENVIRONMENTS_DATES_H_

#include <cstdint>
#include <memory>

#include "environments/task.h"

namespace millrace {

// `correct` when the completion, without surrounding white space, is the date and nothing else.
// "fields" of the reward: year, month, day; "format": nnnn-nn-nn. No baseline: a regular expression
// and a table of months are always right.
std::unique_ptr<Task> MakeDatesTask(uint64_t seed, bool partial_credit);

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_DATES_H_
