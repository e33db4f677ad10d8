// What a line of input asks for, as token ids. Thread-safe (plain functions).
#ifndef MILLRACE_CLI_PROMPT_INPUT_H_
#define MILLRACE_CLI_PROMPT_INPUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/json_lines.h"
#include "model/tokenizer.h"

namespace millrace {

struct PromptFormat {
  bool chat = true;        // "prompt" is a user message for the chat template
  int32_t vocab_size = 0;  // of the model, for "ids"
};

// {"ids": [...]}, {"messages": [...], ...} as `millrace render` takes it, {"prompt": "..."}, or a
// string, which is a prompt. INVALID_ARGUMENT names what is missing.
absl::StatusOr<std::vector<int32_t>> PromptIds(const Tokenizer& tokenizer,
                                               const PromptFormat& format,
                                               const OrderedJson& input);

}  // namespace millrace

#endif  // MILLRACE_CLI_PROMPT_INPUT_H_
