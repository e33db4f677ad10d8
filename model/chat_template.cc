#include "model/chat_template.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "common/status_macros.h"
#include "model/jinja/template.h"
#include "model/json_checks.h"
#include "model/tokenizer_json.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;
using jinja::Text;
using jinja::Value;

// Where text comes from: the template (jinja::kTemplateOrigin), or
constexpr int32_t kDataOrigin = 1;       // messages of others, tools, variables
constexpr int32_t kAssistantOrigin = 2;  // plus the number of the message

absl::Status CheckMessages(const Json& messages) {
  if (!messages.is_array() || messages.empty()) {
    return absl::InvalidArgumentError("a conversation without messages");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("message ", i, " is no object with a string \"role\""));
    }
  }
  return absl::OkStatus();
}

// As `transformers` hands a message to templates: without null fields, and with reasoning under
// both of its names.
Value MessageValue(const Json& message, int32_t origin) {
  Json fields = Json::object();
  Json reasoning;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    if (reasoning.is_null() && message.contains(name)) reasoning = message[name];
  }
  if (!reasoning.is_null()) fields["thinking"] = reasoning;
  for (const auto& [key, value] : message.items()) {
    if (!value.is_null()) fields[key] = value;
  }
  if (!reasoning.is_null()) fields["reasoning_content"] = reasoning;
  jinja::Dict dict(origin);
  for (const auto& [key, value] : fields.items()) {
    // Who speaks is for the template to say.
    dict.Set(Value::Literal(key), Value::FromJson(value, key == "role" ? kDataOrigin : origin));
  }
  return Value::Of(std::move(dict));
}

jinja::Variables VariablesOf(const Tokenizer& tokenizer, const ChatRequest& request) {
  jinja::Variables variables;
  jinja::List messages;
  messages.origin = kDataOrigin;
  for (size_t i = 0; i < request.messages.size(); ++i) {
    const bool assistant = request.messages[i]["role"] == "assistant";
    messages.items.push_back(MessageValue(
        request.messages[i], assistant ? kAssistantOrigin + static_cast<int32_t>(i) : kDataOrigin));
  }
  variables.emplace_back("messages", Value::Of(std::move(messages)));
  variables.emplace_back("tools", Value::FromJson(request.tools, kDataOrigin));
  variables.emplace_back("documents", Value::MakeNone());
  variables.emplace_back("add_generation_prompt", Value::Bool(request.add_generation_prompt));
  if (request.variables.is_object()) {
    for (const auto& [name, value] : request.variables.items()) {
      variables.emplace_back(name, Value::FromJson(value, kDataOrigin));
    }
  }
  for (const auto& [name, text] : tokenizer.config().special_tokens) {
    variables.emplace_back(name, Value::Literal(text));
  }
  return variables;
}

// Ranges of the text whose tag `in` accepts.
template <typename Accept>
std::vector<TextRange> RangesWhere(const Text& text, Accept in) {
  std::vector<TextRange> ranges;
  size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    if (in(run.tag)) {
      if (!ranges.empty() && ranges.back().end == begin) {
        ranges.back().end = run.end;
      } else {
        ranges.push_back({begin, run.end});
      }
    }
    begin = run.end;
  }
  return ranges;
}

// From the first to the last character of each assistant message.
std::vector<TextRange> AssistantRanges(const Text& text) {
  std::vector<TextRange> ranges;
  int32_t last = 0;
  size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    if (run.tag.origin >= kAssistantOrigin) {
      if (run.tag.origin == last) {
        ranges.back().end = run.end;
      } else {
        ranges.push_back({begin, run.end});
        last = run.tag.origin;
      }
    } else if (run.tag.origin == kDataOrigin) {
      last = 0;
    }
    begin = run.end;
  }
  return ranges;
}

// Goes on from the end of each marked stretch to the special token that ends the turn, through what
// the template wrote. `data`: tokens that hold anything else.
void ExtendToEndOfTurn(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                       const std::vector<uint8_t>& data, std::vector<uint8_t>* mask) {
  for (size_t i = 1; i < ids.size(); ++i) {
    if (!(*mask)[i - 1] || (*mask)[i]) continue;
    size_t end = i;
    while (end < ids.size() && !data[end] && !tokenizer.IsSpecial(ids[end])) ++end;
    if (end == ids.size() || data[end] || !tokenizer.IsSpecial(ids[end])) continue;
    std::fill(mask->begin() + static_cast<ptrdiff_t>(i),
              mask->begin() + static_cast<ptrdiff_t>(end) + 1, 1);
    i = end + 1;
  }
}

absl::StatusOr<Text> RenderText(const Tokenizer& tokenizer, const ChatRequest& request) {
  MR_RETURN_IF_ERROR(CheckMessages(request.messages));
  const auto& templates = tokenizer.config().chat_templates;
  const bool for_tools = !request.tools.is_null() && templates.count("tool_use") > 0;
  MR_ASSIGN_OR_RETURN(const auto chat, tokenizer.ChatTemplate(for_tools ? "tool_use" : "default"));
  jinja::RenderOptions options;
  options.now = Clock::Real()->Now();
  auto text = chat->Render(VariablesOf(tokenizer, request), options);
  if (text.ok()) return text;
  return absl::Status(text.status().code(),
                      absl::StrCat("chat template, ", text.status().message()));
}

std::vector<TextRange> SpecialRanges(const Text& text, bool trust_messages) {
  if (trust_messages) return {{0, text.size()}};
  return RangesWhere(text,
                     [](const jinja::Tag& tag) { return tag.origin == jinja::kTemplateOrigin; });
}

}  // namespace

absl::StatusOr<ChatRequest> ParseChatRequest(absl::string_view text) {
  MR_ASSIGN_OR_RETURN(Json json, ParseForeignJson<Json>(text, "messages"));
  ChatRequest request;
  if (json.is_array()) {
    request.messages = std::move(json);
    MR_RETURN_IF_ERROR(CheckMessages(request.messages));
    return request;
  }
  if (!json.is_object()) {
    return absl::InvalidArgumentError("messages: neither a list of messages nor an object");
  }
  for (const auto& field : json.items()) {
    const std::string& key = field.key();  // a lambda takes it, which clang refuses of a binding
    const nlohmann::json& value = field.value();
    const auto wrong = [&](const char* kind) {
      return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is no ", kind));
    };
    if (key == "messages") {
      request.messages = value;
    } else if (key == "tools") {
      if (!value.is_null() && !value.is_array()) return wrong("list");
      request.tools = value;
    } else if (key == "chat_template_kwargs") {
      if (!value.is_null() && !value.is_object()) return wrong("object");
      request.variables = value;
    } else if (key == "add_generation_prompt") {
      if (!value.is_boolean()) return wrong("boolean");
      request.add_generation_prompt = value.get<bool>();
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown key \"", key,
                       "\" (known: messages, tools, chat_template_kwargs, add_generation_prompt)"));
    }
  }
  MR_RETURN_IF_ERROR(CheckMessages(request.messages));
  return request;
}

absl::StatusOr<RenderedChat> RenderChat(const Tokenizer& tokenizer, const ChatRequest& request) {
  MR_ASSIGN_OR_RETURN(const Text text, RenderText(tokenizer, request));
  const std::vector<TextRange> special = SpecialRanges(text, request.trust_messages);
  std::vector<TextRange> marked =
      RangesWhere(text, [](const jinja::Tag& tag) { return tag.generated; });
  const bool by_origin = marked.empty();
  if (by_origin) marked = AssistantRanges(text);
  RenderedChat out;
  out.text = text.bytes();
  out.ids = tokenizer.EncodeMarked({out.text, special, marked}, &out.assistant_mask);
  if (by_origin && !marked.empty()) {
    const std::vector<TextRange> data = RangesWhere(
        text, [](const jinja::Tag& tag) { return tag.origin != jinja::kTemplateOrigin; });
    std::vector<uint8_t> holds_data;
    tokenizer.EncodeMarked({out.text, special, data}, &holds_data);
    ExtendToEndOfTurn(tokenizer, out.ids, holds_data, &out.assistant_mask);
  }
  return out;
}

absl::StatusOr<std::vector<int32_t>> EncodeChat(const Tokenizer& tokenizer,
                                                const std::vector<ChatMessage>& messages) {
  ChatRequest request;
  request.messages = Json::array();
  for (const ChatMessage& message : messages) {
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      return absl::InvalidArgumentError(absl::StrCat("message role \"", message.role,
                                                     "\" is not one of system, user, assistant"));
    }
    request.messages.push_back(
        Json::object({{"role", message.role}, {"content", message.content}}));
  }
  MR_ASSIGN_OR_RETURN(const Text text, RenderText(tokenizer, request));
  std::vector<uint8_t> marks;
  return tokenizer.EncodeMarked({text.bytes(), SpecialRanges(text, false), {}}, &marks);
}

absl::StatusOr<std::vector<int32_t>> EncodeProblem(const Tokenizer& tokenizer,
                                                   const Problem& problem) {
  if (problem.messages.empty()) return tokenizer.Encode(problem.text, {.add_special = true});
  return EncodeChat(tokenizer, problem.messages);
}

std::vector<int32_t> StopIds(const Tokenizer& tokenizer, const std::vector<int32_t>& eos_ids) {
  std::vector<int32_t> ids = eos_ids;
  for (const char* name : {"<|im_end|>", "<|eot_id|>"}) {
    const int32_t end = tokenizer.TokenId(name);
    if (end >= 0 && std::find(ids.begin(), ids.end(), end) == ids.end()) ids.push_back(end);
  }
  return ids;
}

}  // namespace millrace
