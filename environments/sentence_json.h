// Task sentence_json: "At 34, Maria moved to Paris." to {"name": "Maria", "age": 34, "city":
// "Paris"}, with one worked example. Sentences come in three phrasings, none of them that of the
// example.
#ifndef MILLRACE_ENVIRONMENTS_SENTENCE_JSON_H_
#define MILLRACE_ENVIRONMENTS_SENTENCE_JSON_H_

#include <cstdint>
#include <memory>

#include "environments/task.h"

namespace millrace {

// `correct` when the completion, without surrounding white space and an optional ``` fence, is one
// JSON object with exactly these keys, each once, and the right values, age an integer. Reward:
// environments/few_shot_task.h. The baseline is a regular expression for the first phrasing.
std::unique_ptr<Task> MakeSentenceJsonTask(uint64_t seed, bool partial_credit);

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_SENTENCE_JSON_H_
