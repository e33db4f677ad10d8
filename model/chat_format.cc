#include "model/chat_format.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/tokenizer.h"

namespace millrace {

std::string DefaultSystemPrompt(const std::string& chat_template) {
  for (const char* prompt :
       {"You are a helpful AI assistant named SmolLM, trained by Hugging Face",
        "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."}) {
    if (absl::StrContains(chat_template, prompt)) return prompt;
  }
  return "";
}

absl::StatusOr<std::vector<int32_t>> EncodeChat(const Tokenizer& tokenizer,
                                                const std::vector<ChatMessage>& messages) {
  MR_RETURN_IF_ERROR(tokenizer.CheckChatFormat());
  if (messages.empty()) return absl::InvalidArgumentError("a conversation without messages");
  const int32_t start = tokenizer.TokenId("<|im_start|>");
  const int32_t end = tokenizer.TokenId("<|im_end|>");
  std::vector<int32_t> ids;
  const auto append = [&](const std::vector<int32_t>& more) {
    ids.insert(ids.end(), more.begin(), more.end());
  };
  const std::vector<int32_t> newline = tokenizer.Encode("\n");
  const auto turn = [&](const std::string& role, const std::string& content) {
    ids.push_back(start);
    // Role and content are one text to the tokenizer, as in a rendered template.
    append(tokenizer.Encode(absl::StrCat(role, "\n", content)));
    ids.push_back(end);
    append(newline);
  };
  if (messages[0].role != "system" && !tokenizer.default_system_prompt().empty()) {
    turn("system", tokenizer.default_system_prompt());
  }
  for (const ChatMessage& message : messages) {
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      return absl::InvalidArgumentError(absl::StrCat("message role \"", message.role,
                                                     "\" is not one of system, user, assistant"));
    }
    turn(message.role, message.content);
  }
  ids.push_back(start);
  append(tokenizer.Encode("assistant\n"));
  return ids;
}

absl::StatusOr<std::vector<int32_t>> EncodeProblem(const Tokenizer& tokenizer,
                                                   const Problem& problem) {
  if (problem.messages.empty()) return tokenizer.Encode(problem.text);
  return EncodeChat(tokenizer, problem.messages);
}

std::vector<int32_t> StopIds(const Tokenizer& tokenizer, const std::vector<int32_t>& eos_ids) {
  std::vector<int32_t> ids = eos_ids;
  const int32_t end = tokenizer.TokenId("<|im_end|>");
  if (end >= 0 && std::find(ids.begin(), ids.end(), end) == ids.end()) ids.push_back(end);
  return ids;
}

}  // namespace millrace
