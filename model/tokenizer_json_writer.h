// Parts of the tokenizer.json files that millrace writes itself.
#ifndef MILLRACE_MODEL_TOKENIZER_JSON_WRITER_H_
#define MILLRACE_MODEL_TOKENIZER_JSON_WRITER_H_

#include <string>

#include "nlohmann/json.hpp"

namespace millrace {

// {"content": text, ...} of an added token, without its id.
nlohmann::json AddedTokenJson(const std::string& text, bool special);

struct TokenizerJsonParts {
  nlohmann::json vocab = nlohmann::json::object();  // token text: id
  nlohmann::json merges = nlohmann::json::array();  // [left, right] each
  nlohmann::json added = nlohmann::json::array();   // AddedTokenJson with ids
  nlohmann::json normalizer, pre_tokenizer, post_processor, decoder;
  bool ignore_merges = false;
};
// A whole tokenizer.json with a byte-level BPE model.
nlohmann::json TokenizerJsonOf(TokenizerJsonParts parts);

}  // namespace millrace

#endif  // MILLRACE_MODEL_TOKENIZER_JSON_WRITER_H_
