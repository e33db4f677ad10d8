// The ChatML chat format: what model/tokenizer.h's EncodeChat needs to know of a chat template.
#ifndef MILLRACE_MODEL_CHAT_FORMAT_H_
#define MILLRACE_MODEL_CHAT_FORMAT_H_

#include <string>

namespace millrace {

// The system prompt that a known chat template adds when the first message is not `system`; empty
// when it adds none. Templates are not executed: the known ones are recognised by that prompt.
std::string DefaultSystemPrompt(const std::string& chat_template);

}  // namespace millrace

#endif  // MILLRACE_MODEL_CHAT_FORMAT_H_
