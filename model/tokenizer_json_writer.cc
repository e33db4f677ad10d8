#include "model/tokenizer_json_writer.h"

#include <utility>

namespace millrace {

using Json = nlohmann::json;

Json AddedTokenJson(const std::string& text, bool special) {
  return {{"content", text}, {"lstrip", false},      {"normalized", false},
          {"rstrip", false}, {"single_word", false}, {"special", special}};
}

Json TokenizerJsonOf(TokenizerJsonParts parts) {
  Json json;
  json["version"] = "1.0";
  json["truncation"] = Json();
  json["padding"] = Json();
  json["added_tokens"] = std::move(parts.added);
  json["normalizer"] = std::move(parts.normalizer);
  json["pre_tokenizer"] = std::move(parts.pre_tokenizer);
  json["post_processor"] = std::move(parts.post_processor);
  json["decoder"] = std::move(parts.decoder);
  json["model"] = {{"type", "BPE"},
                   {"dropout", Json()},
                   {"unk_token", Json()},
                   {"continuing_subword_prefix", Json()},
                   {"end_of_word_suffix", Json()},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", parts.ignore_merges}};
  json["model"]["vocab"] = std::move(parts.vocab);
  json["model"]["merges"] = std::move(parts.merges);
  return json;
}

}  // namespace millrace
