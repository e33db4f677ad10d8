// Reads tokenizer.json and tokenizer_config.json (Hugging Face `tokenizers` and `transformers`)
// into the parts of a Tokenizer. What would encode or decode differently and is not supported is
// refused by name. "truncation" and "padding" are left to the caller, as transformers does.
#ifndef MILLRACE_MODEL_TOKENIZER_JSON_H_
#define MILLRACE_MODEL_TOKENIZER_JSON_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/added_tokens.h"
#include "model/bpe.h"
#include "model/normalizer.h"
#include "model/pretokenizer.h"
#include "model/token_decoder.h"

namespace millrace {

// SentencePiece's white space: spaces become `replacement`, which also goes before the text.
struct Metaspace {
  enum class Prepend { kAlways, kFirst, kNever };  // kFirst: only at the very front of a text
  std::string replacement;
  Prepend prepend = Prepend::kAlways;
};

struct TokenizerParts {
  Normalizer normalizer;
  std::optional<Metaspace> metaspace;
  Pretokenizer pretokenizer;
  Bpe bpe;
  TokenDecoder decoder;
  std::vector<AddedToken> added;
  std::vector<int32_t> prefix, suffix;  // what the post-processor puts around a text
};
// UNIMPLEMENTED names the kind that is not supported, INVALID_ARGUMENT what is broken; both name
// `file`.
absl::StatusOr<TokenizerParts> ParseTokenizerJson(const std::string& text, const std::string& file);

struct TokenizerConfig {
  // "bos_token", "eos_token", "pad_token", ... that are set: what templates know them by.
  std::map<std::string, std::string> special_tokens;
  std::map<std::string, std::string> chat_templates;  // by name; a single one is "default"
};
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const std::string& text,
                                                     const std::string& file);

// The chat template of ChatML, as Qwen and SmolLM2 use it, without a default system prompt.
extern const char* const kChatMl;

// tokenizer.json of the byte tokenizer (Tokenizer::Bytes) and its tokenizer_config.json.
std::string ByteTokenizerJson();
std::string ByteTokenizerConfigJson();

}  // namespace millrace

#endif  // MILLRACE_MODEL_TOKENIZER_JSON_H_
