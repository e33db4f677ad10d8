// Byte-level BPE from a Hugging Face tokenizer.json (GPT-2 / SmolLM2 kind; others are refused by
// name). Thread-safe after loading.
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

namespace millrace {

class Tokenizer {
 public:
  struct EncodeOptions {
    bool parse_special = false;  // whether special tokens spelled out in the text become their ids
  };
  // Reads dir/tokenizer.json (and tokenizer_config.json for eos, bos and the chat template name).
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& dir);
  // 256 byte tokens plus <|pad|>, <|im_start|>, <|im_end|>: what models with random weights use.
  // Save() writes it as tokenizer.json.
  static std::unique_ptr<Tokenizer> Bytes();
  ~Tokenizer();

  std::vector<int32_t> Encode(absl::string_view text, EncodeOptions options) const;
  std::vector<int32_t> Encode(absl::string_view text) const {
    return Encode(text, EncodeOptions());
  }
  // Bytes of the ids; invalid UTF-8 is replaced by U+FFFD. Special tokens are left out unless asked
  // for.
  std::string Decode(absl::Span<const int32_t> ids, bool keep_special = false) const;
  // Exact bytes of one token (not UTF-8 by itself).
  std::string TokenBytes(int32_t id) const;
  int32_t vocab_size() const;  // highest id + 1
  // Id of a token by its text, -1 when there is none.
  int32_t TokenId(absl::string_view token) const;
  bool IsSpecial(int32_t id) const;
  int32_t eos_id() const;  // -1 = none
  // System prompt that the chat template adds to a conversation without one; empty = none.
  const std::string& default_system_prompt() const;
  // UNIMPLEMENTED, with the reason, when the chat format is not ChatML.
  absl::Status CheckChatFormat() const;
  // Copies/writes tokenizer.json, tokenizer_config.json (and what else was loaded beside them) into
  // dir.
  absl::Status Save(const std::string& dir) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Ids of a conversation in the model's ChatML format with the generation prompt
// ("<|im_start|>assistant\n") at the end. Control tokens come from their ids; message text is
// encoded with parse_special = false, so user text can't forge a turn. SmolLM2 adds its default
// system prompt when the first message is not `system`.
absl::StatusOr<std::vector<int32_t>> EncodeChat(const Tokenizer& tokenizer,
                                                const std::vector<ChatMessage>& messages);
// Prompt ids of a problem: EncodeChat for messages, Encode for plain text.
absl::StatusOr<std::vector<int32_t>> EncodeProblem(const Tokenizer& tokenizer,
                                                   const Problem& problem);
// Ids that end a turn: config eos ids plus <|im_end|> when the vocabulary has it.
std::vector<int32_t> StopIds(const Tokenizer& tokenizer, const std::vector<int32_t>& eos_ids);

}  // namespace millrace

#endif  // MILLRACE_MODEL_TOKENIZER_H_
