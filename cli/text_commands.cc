// tokenize, detokenize, render: what only needs a model's tokenizer.
#include <memory>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/commands.h"
#include "cli/json_lines.h"
#include "cli/run_dir.h"
#include "common/status_macros.h"
#include "model/adapter.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"

namespace millrace {
namespace {

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& dir) {
  MR_ASSIGN_OR_RETURN(const std::string model, FindModelDir(dir));
  MR_ASSIGN_OR_RETURN(const std::string tokenizer, TokenizerDir(model));
  return Tokenizer::Load(tokenizer);
}

// The texts of the tokens, one by one, as far as they are UTF-8 by themselves.
OrderedJson TokenTexts(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  OrderedJson texts = OrderedJson::array();
  for (const int32_t id : ids) texts.push_back(tokenizer.TokenBytes(id));
  return texts;
}

absl::Status Tokenize(const TextOptions& options) {
  MR_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(options.dir));
  const auto print = [&](const std::string& text) {
    const std::vector<int32_t> ids =
        tokenizer->Encode(text, {options.special, options.add_special});
    return PrintJsonLine({{"ids", ids}, {"tokens", TokenTexts(*tokenizer, ids)}});
  };
  if (options.has_text) return print(options.text);
  return ForEachJsonLine(StandardInput(), [&](int64_t, const OrderedJson& line) -> absl::Status {
    if (line.is_string()) return print(line.get<std::string>());
    if (!line.is_object()) {
      return absl::InvalidArgumentError("neither a JSON string nor {\"text\": \"...\"}");
    }
    MR_ASSIGN_OR_RETURN(const std::string text, TextMember(line, "text"));
    return print(text);
  });
}

absl::Status Detokenize(const TextOptions& options) {
  MR_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(options.dir));
  return ForEachJsonLine(StandardInput(), [&](int64_t, const OrderedJson& line) -> absl::Status {
    if (line.is_object() && !line.contains("ids")) {
      return absl::InvalidArgumentError("no \"ids\", and not an array either");
    }
    MR_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                        TokenIdsOf(line.is_object() ? line["ids"] : line, tokenizer->vocab_size()));
    return PrintJsonLine({{"text", tokenizer->Decode(ids, options.special)}});
  });
}

absl::Status RenderOne(const Tokenizer& tokenizer, const RenderOptions& options,
                       const std::string& json) {
  MR_ASSIGN_OR_RETURN(ChatRequest request, ParseChatRequest(json));
  if (options.no_generation_prompt) request.add_generation_prompt = false;
  MR_ASSIGN_OR_RETURN(const RenderedChat rendered, RenderChat(tokenizer, request));
  return PrintJsonLine({{"text", rendered.text},
                        {"ids", rendered.ids},
                        {"assistant_mask", rendered.assistant_mask}});
}

absl::Status Render(const RenderOptions& options) {
  MR_ASSIGN_OR_RETURN(const auto tokenizer, LoadTokenizer(options.dir));
  MR_ASSIGN_OR_RETURN(const std::string all, ReadAll(StandardInput()));
  // One conversation may be written over several lines.
  if (OrderedJson::accept(all)) return RenderOne(*tokenizer, options, all);
  std::istringstream lines(all);
  const absl::Status status = ForEachJsonLine(lines, [&](int64_t, const OrderedJson& line) {
    return RenderOne(*tokenizer, options, line.dump());
  });
  if (!absl::EndsWith(status.message(), "not valid JSON")) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(),
                                                  "; of several conversations each is on one "
                                                  "line, only a single one may span lines"));
}

}  // namespace

int TokenizeCommand(const TextOptions& options) {
  const absl::Status status = Tokenize(options);
  return status.ok() ? 0 : PrintFailure(status);
}

int DetokenizeCommand(const TextOptions& options) {
  const absl::Status status = Detokenize(options);
  return status.ok() ? 0 : PrintFailure(status);
}

int RenderCommand(const RenderOptions& options) {
  const absl::Status status = Render(options);
  return status.ok() ? 0 : PrintFailure(status);
}

}  // namespace millrace
