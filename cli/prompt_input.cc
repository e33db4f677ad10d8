#include "cli/prompt_input.h"

#include <utility>

#include "common/status_macros.h"
#include "model/chat_template.h"

namespace millrace {

absl::StatusOr<std::vector<int32_t>> PromptIds(const Tokenizer& tokenizer,
                                               const PromptFormat& format,
                                               const OrderedJson& input) {
  if (input.is_object() && input.contains("ids")) {
    return TokenIdsOf(input["ids"], format.vocab_size);
  }
  if (input.is_object() && input.contains("messages")) {
    // Other members of the line are for the command.
    OrderedJson conversation = OrderedJson::object();
    for (const char* key : {"messages", "tools", "chat_template_kwargs", "add_generation_prompt"}) {
      if (input.contains(key)) conversation[key] = input[key];
    }
    MR_ASSIGN_OR_RETURN(const ChatRequest request, ParseChatRequest(conversation.dump()));
    MR_ASSIGN_OR_RETURN(RenderedChat rendered, RenderChat(tokenizer, request));
    return std::move(rendered.ids);
  }
  std::string text;
  if (input.is_string()) {
    text = input.get<std::string>();
  } else if (input.is_object() && input.contains("prompt")) {
    MR_ASSIGN_OR_RETURN(text, TextMember(input, "prompt"));
  } else {
    return absl::InvalidArgumentError(
        "no \"prompt\", \"messages\" or \"ids\", and not a string either");
  }
  if (format.chat) return EncodeChat(tokenizer, {{"user", text}});
  return tokenizer.Encode(text, {/*parse_special=*/false, /*add_special=*/true});
}

}  // namespace millrace
