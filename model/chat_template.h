// Conversations through a model's own chat template (Jinja, run by model/jinja): text, token ids
// and which of them are the assistant's. Thread-safe functions.
//
// Text of messages and tools can't forge control tokens: special tokens are recognised only where
// every one of their characters comes from the template itself (or from the tokenizer's bos_token
// and the like). What a message spells out stays text.
#ifndef MILLRACE_MODEL_CHAT_TEMPLATE_H_
#define MILLRACE_MODEL_CHAT_TEMPLATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/tokenizer.h"
#include "nlohmann/json.hpp"

namespace millrace {

// A conversation in the form of the chat completions API. Objects keep the order of their keys,
// which templates print.
struct ChatRequest {
  nlohmann::ordered_json messages;   // array of {"role", "content", "tool_calls", ...}
  nlohmann::ordered_json tools;      // array of function descriptions; null = none
  nlohmann::ordered_json variables;  // object: further variables of the template, such as
                                     // {"enable_thinking": false}; null = none
  bool add_generation_prompt = true;
  // Special tokens spelled out in messages become control tokens. Only for text that nobody else
  // wrote, and to compare with libraries that always do so.
  bool trust_messages = false;
};

// Reads a request from JSON text: an array of messages, or an object {"messages", "tools",
// "chat_template_kwargs", "add_generation_prompt"} (the latter three may be left out).
// INVALID_ARGUMENT names what is wrong: no JSON, nested too deeply, not UTF-8, a message that is no
// object with a string "role", an unknown key.
absl::StatusOr<ChatRequest> ParseChatRequest(absl::string_view json);

struct RenderedChat {
  std::string text;
  std::vector<int32_t> ids;
  // One a token: 1 = the assistant's. Of the spans that the template marks with {% generation %};
  // where it marks none, from the first character that comes from an assistant message to the
  // special token that ends its turn; where no special token follows before the next message, to
  // its last character.
  std::vector<uint8_t> assistant_mask;
};
// UNIMPLEMENTED names what the template uses and millrace does not know, with its line;
// INVALID_ARGUMENT has the message of a template that raises an exception or uses an undefined
// value; RESOURCE_EXHAUSTED names the limit that a template ran into; FAILED_PRECONDITION when the
// model has no chat template.
absl::StatusOr<RenderedChat> RenderChat(const Tokenizer& tokenizer, const ChatRequest& request);

}  // namespace millrace

#endif  // MILLRACE_MODEL_CHAT_TEMPLATE_H_
