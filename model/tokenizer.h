// BPE tokenizers from a Hugging Face tokenizer.json: byte-level (Qwen, Llama-3, GPT-2, SmolLM2) and
// SentencePiece-like with byte fallback (Llama-2, Mistral). What is not supported is refused by
// name. Thread-safe after loading.
#ifndef MILLRACE_MODEL_TOKENIZER_H_
#define MILLRACE_MODEL_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "environments/task.h"
#include "model/added_tokens.h"

namespace millrace {

struct TokenizerConfig;
namespace jinja {
class Template;
}

class Tokenizer {
 public:
  struct EncodeOptions {
    bool parse_special = false;  // whether special tokens spelled out in the text become their ids
    bool add_special = false;    // what the post-processor adds around a text (BOS, say)
  };
  // Reads dir/tokenizer.json and tokenizer_config.json (special tokens, chat templates); where
  // there are chat_template.jinja (the default one) or additional_chat_templates/NAME.jinja, these
  // are all the chat templates.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& dir);
  // 256 byte tokens plus <|pad|>, <|im_start|>, <|im_end|>: what models with random weights use.
  // Save() writes it as tokenizer.json.
  static std::unique_ptr<Tokenizer> Bytes();
  ~Tokenizer();

  // Bytes of `text` that are not UTF-8 become U+FFFD.
  std::vector<int32_t> Encode(absl::string_view text, EncodeOptions options) const;
  std::vector<int32_t> Encode(absl::string_view text) const {
    return Encode(text, EncodeOptions());
  }
  struct MarkedText {
    absl::string_view text;  // well-formed UTF-8
    // Where special tokens may stand: each within one of these. In order, not overlapping, as
    // below.
    absl::Span<const TextRange> special_in;
    absl::Span<const TextRange> marked;
  };
  // (*marks)[i] is 1 where token i holds any byte of a marked range.
  std::vector<int32_t> EncodeMarked(const MarkedText& text, std::vector<uint8_t>* marks) const;

  // Text of the ids; invalid UTF-8 is replaced by U+FFFD. Special tokens are left out unless asked
  // for.
  std::string Decode(absl::Span<const int32_t> ids, bool keep_special = false) const;
  // Exact bytes of one token (not UTF-8 by itself).
  std::string TokenBytes(int32_t id) const;
  int32_t vocab_size() const;  // highest id + 1
  // Id of a token by its text, -1 when there is none.
  int32_t TokenId(absl::string_view token) const;
  bool IsSpecial(int32_t id) const;
  int32_t eos_id() const;  // -1 = none
  // Special tokens and chat templates by name.
  const TokenizerConfig& config() const;
  // The chat template called `name` ("default" where there is one). A tokenizer without templates
  // that has <|im_start|> and <|im_end|> speaks plain ChatML. FAILED_PRECONDITION when there is no
  // such template, else the error of model/jinja, naming what is not supported and its line.
  absl::StatusOr<std::shared_ptr<const jinja::Template>> ChatTemplate(
      const std::string& name) const;
  // Whether there is a chat template that can be run.
  absl::Status CheckChatFormat() const;
  // Copies/writes tokenizer.json, tokenizer_config.json (and what else was loaded beside them) into
  // dir.
  absl::Status Save(const std::string& dir) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Text of tokens that come one by one, such that no character is ever given out in halves and
// nothing given out is taken back. Not thread-safe; the tokenizer must outlive it.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer* tokenizer, bool keep_special = false)
      : tokenizer_(tokenizer), keep_special_(keep_special) {}
  // The text that `id` completes; empty while its last character is not whole. A character that
  // can't become whole any more is U+FFFD, given out with the text behind it.
  std::string Push(int32_t id);
  // What was held back.
  std::string Flush();

 private:
  const Tokenizer* const tokenizer_;
  const bool keep_special_;
  // Tokens of the text given out last, which tells how the next ones begin, and newer ones.
  std::vector<int32_t> window_;
  size_t given_tokens_ = 0;  // of window_
  std::string given_;        // text of these
};

// Ids of a conversation through the model's chat template, with the generation prompt behind it.
// Text of messages can't forge control tokens (model/chat_template.h, which has more options).
absl::StatusOr<std::vector<int32_t>> EncodeChat(const Tokenizer& tokenizer,
                                                const std::vector<ChatMessage>& messages);
// Prompt ids of a problem: EncodeChat for messages; for plain text Encode, with what the
// post-processor adds.
absl::StatusOr<std::vector<int32_t>> EncodeProblem(const Tokenizer& tokenizer,
                                                   const Problem& problem);
// Ids that end a turn: config eos ids plus <|im_end|> and <|eot_id|> when the vocabulary has them.
std::vector<int32_t> StopIds(const Tokenizer& tokenizer, const std::vector<int32_t>& eos_ids);

}  // namespace millrace

#endif  // MILLRACE_MODEL_TOKENIZER_H_
