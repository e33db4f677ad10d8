// Reads tokenizer.json and tokenizer_config.json (Hugging Face `tokenizers` and `transformers`)
// into the parts of a Tokenizer. What would encode differently and is not supported is refused by
// name.
#ifndef MILLRACE_MODEL_TOKENIZER_JSON_H_
#define MILLRACE_MODEL_TOKENIZER_JSON_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/bpe.h"
#include "model/pretokenizer.h"

namespace millrace {

struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = false;
};

struct TokenizerParts {
  Bpe bpe;
  Pretokenizer pretokenizer;
  bool nfc = false;  // Unicode normalisation form C before everything else
  std::vector<AddedToken> added;
};
// UNIMPLEMENTED names the kind that is not supported, INVALID_ARGUMENT what is broken; both name
// `file`.
absl::StatusOr<TokenizerParts> ParseTokenizerJson(const std::string& text, const std::string& file);

struct TokenizerConfig {
  std::string eos_token;                     // empty = none
  std::optional<std::string> chat_template;  // the one called "default" when there are several
};
absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const std::string& text,
                                                     const std::string& file);

// tokenizer.json of the byte tokenizer (Tokenizer::Bytes) and its tokenizer_config.json.
std::string ByteTokenizerJson();
std::string ByteTokenizerConfigJson();

}  // namespace millrace

#endif  // MILLRACE_MODEL_TOKENIZER_JSON_H_
