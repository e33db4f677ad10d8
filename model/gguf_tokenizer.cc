#include "model/gguf_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/model_checks.h"
#include "model/tokenizer_json.h"
#include "model/tokenizer_json_writer.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

using Json = nlohmann::json;

// llama.cpp's token types.
enum TokenType : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4 };

// Whether it is one of the "added_tokens" of tokenizer.json. What is neither that nor normal is no
// token there.
bool IsAdded(int64_t type) { return type == kControl || type == kUserDefined || type == kUnknown; }

// What a pre-tokenizer name of llama.cpp stands for.
struct Pretokenizing {
  const char* name;
  bool nfc;
  bool digits;          // every digit by itself, then GPT-2's words
  const char* pattern;  // null = GPT-2's words
  bool ignore_merges = false;
  bool add_bos = false;  // unless the file says otherwise
};
constexpr Pretokenizing kPretokenizers[] = {
    {"smollm", false, true, nullptr},
    {"gpt-2", false, false, nullptr},
    {"default", false, false, nullptr},
    {"qwen2", true, false,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {"llama-bpe", false, false,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     true, true},
};

Json ByteLevel(bool trim_offsets, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", trim_offsets},
          {"use_regex", use_regex}};
}

Json PretokenizerJson(const Pretokenizing& pre) {
  if (pre.pattern != nullptr) {
    const Json split = {{"type", "Split"},
                        {"pattern", {{"Regex", pre.pattern}}},
                        {"behavior", "Isolated"},
                        {"invert", false}};
    return {{"type", "Sequence"}, {"pretokenizers", {split, ByteLevel(false, false)}}};
  }
  if (!pre.digits) return ByteLevel(true, true);
  const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
  return {{"type", "Sequence"}, {"pretokenizers", {digits, ByteLevel(true, true)}}};
}

struct Tokens {
  std::vector<std::string> texts;
  std::vector<int64_t> types;
  std::vector<std::string> merges;
  int64_t bos = -1;  // put before every text; -1 = none
};

absl::StatusOr<Tokens> ReadTokens(const GgufReader& gguf) {
  auto texts = gguf.Get<std::vector<std::string>>("tokenizer.ggml.tokens");
  auto types = gguf.Get<std::vector<int64_t>>("tokenizer.ggml.token_type");
  auto merges = gguf.Get<std::vector<std::string>>("tokenizer.ggml.merges");
  if (!texts || !types || !merges || texts->empty() || texts->size() != types->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.ggml.tokens (", texts ? texts->size() : 0, "), token_type (",
                     types ? types->size() : 0, ") and merges (", merges ? merges->size() : 0,
                     ") are missing or don't fit each other"));
  }
  return Tokens{*std::move(texts), *std::move(types), *std::move(merges)};
}

Json PostProcessorJson(const Tokens& tokens) {
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", true},
                           {"trim_offsets", false},
                           {"use_regex", true}};
  if (tokens.bos < 0) return byte_level;
  const std::string& text = tokens.texts[tokens.bos];
  const Json bos = {{"SpecialToken", {{"id", text}, {"type_id", 0}}}};
  const Json a = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json b = {{"Sequence", {{"id", "B"}, {"type_id", 0}}}};
  Json special = Json::object();
  special[text] = {{"id", text}, {"ids", {tokens.bos}}, {"tokens", {text}}};
  const Json around = {{"type", "TemplateProcessing"},
                       {"single", {bos, a}},
                       {"pair", {bos, a, bos, b}},
                       {"special_tokens", special}};
  return {{"type", "Sequence"}, {"processors", {byte_level, around}}};
}

Json TokenizerJson(const Tokens& tokens, const Pretokenizing& pre) {
  Json vocab = Json::object(), added = Json::array(), merges = Json::array();
  size_t top = 0;
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    if (tokens.types[id] == kNormal) top = id;
  }
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    const int64_t type = tokens.types[id];
    const bool is_added = IsAdded(type);
    if (is_added) {
      Json entry = AddedTokenJson(tokens.texts[id], type != kUserDefined);
      entry["id"] = id;
      added.push_back(std::move(entry));
    }
    // Added tokens below the highest ordinary id stand in the vocabulary too, or readers of the
    // file would number them anew.
    if (type == kNormal || (is_added && id < top)) vocab[tokens.texts[id]] = id;
  }
  for (const std::string& merge : tokens.merges) {
    const size_t space = merge.find(' ');
    if (space == std::string::npos) {
      merges.push_back(merge);  // refused with its number when the file is read back
    } else {
      merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
    }
  }
  TokenizerJsonParts parts;
  parts.vocab = std::move(vocab);
  parts.merges = std::move(merges);
  parts.added = std::move(added);
  if (pre.nfc) parts.normalizer = {{"type", "NFC"}};
  parts.pre_tokenizer = PretokenizerJson(pre);
  parts.post_processor = PostProcessorJson(tokens);
  parts.decoder = ByteLevel(true, true);
  parts.decoder["add_prefix_space"] = true;
  parts.ignore_merges = pre.ignore_merges;
  return TokenizerJsonOf(std::move(parts));
}

Json TokenizerConfigJson(const GgufReader& gguf, const Tokens& tokens, const std::string& arch) {
  const bool qwen = absl::StartsWith(arch, "qwen");
  const auto name = [&](const char* key) {
    const auto id = gguf.Get<int64_t>(absl::StrCat("tokenizer.ggml.", key, "_token_id"));
    const bool known = id && *id >= 0 && *id < static_cast<int64_t>(tokens.texts.size());
    return known ? Json(tokens.texts[*id]) : Json();
  };
  Json decoder = Json::object();
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    const int64_t type = tokens.types[id];
    if (!IsAdded(type)) continue;
    decoder[absl::StrCat(id)] = AddedTokenJson(tokens.texts[id], type != kUserDefined);
  }
  const auto context = gguf.Get<int64_t>(absl::StrCat(arch, ".context_length"));
  Json json = {{"tokenizer_class", qwen ? "Qwen2Tokenizer" : "PreTrainedTokenizerFast"},
               {"model_max_length", context ? Json(*context) : Json()},
               {"clean_up_tokenization_spaces", false},
               {"add_prefix_space", false},
               {"add_bos_token", tokens.bos >= 0},
               {"bos_token", qwen ? Json() : name("bos")},
               {"eos_token", name("eos")},
               {"pad_token", name("padding")},
               {"unk_token", name("unknown")},
               {"added_tokens_decoder", decoder}};
  const auto chat = gguf.Get<std::string>("tokenizer.chat_template");
  if (chat && !chat->empty()) json["chat_template"] = *chat;
  return json;
}

// Against the embedding, where the file has one.
absl::Status CheckSize(const Tokens& tokens, const GgufReader& gguf) {
  const auto embed = gguf.tensors().find("token_embd.weight");
  if (embed == gguf.tensors().end()) return absl::OkStatus();
  size_t ids = tokens.types.size();
  while (ids > 0 && tokens.types[ids - 1] != kNormal && !IsAdded(tokens.types[ids - 1])) --ids;
  return CheckTokenizerSize(static_cast<int64_t>(ids), "tokenizer.ggml.tokens",
                            embed->second.shape[0], "this file (token_embd.weight)");
}

// dump() throws on text that is not UTF-8, which a broken file may hold.
absl::StatusOr<std::string> Dump(const Json& json, int indent) {
  try {
    return json.dump(indent) + "\n";
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("a token's text: ", error.what()));
  }
}

}  // namespace

absl::StatusOr<GgufTokenizerFiles> TokenizerFromGguf(const GgufReader& gguf,
                                                     const std::string& architecture) {
  const std::string model = gguf.Get<std::string>("tokenizer.ggml.model").value_or("none");
  if (model != "gpt2") {
    return absl::UnimplementedError(
        absl::StrCat("tokenizer \"", model, "\" is not supported (of gpt2: byte-level BPE)"));
  }
  const std::string name = gguf.Get<std::string>("tokenizer.ggml.pre").value_or("default");
  const auto* pre = std::find_if(std::begin(kPretokenizers), std::end(kPretokenizers),
                                 [&](const Pretokenizing& p) { return name == p.name; });
  if (pre == std::end(kPretokenizers)) {
    return absl::UnimplementedError(absl::StrCat("pre-tokenizer \"", name, "\" is not supported"));
  }
  MR_ASSIGN_OR_RETURN(Tokens tokens, ReadTokens(gguf));
  MR_RETURN_IF_ERROR(CheckSize(tokens, gguf));
  const auto bos = gguf.Get<int64_t>("tokenizer.ggml.bos_token_id");
  const bool add_bos =
      gguf.Get<int64_t>("tokenizer.ggml.add_bos_token").value_or(pre->add_bos ? 1 : 0) != 0;
  if (add_bos && bos && *bos >= 0 && *bos < static_cast<int64_t>(tokens.texts.size())) {
    tokens.bos = *bos;
  }
  GgufTokenizerFiles files;
  MR_ASSIGN_OR_RETURN(files.tokenizer_json, Dump(TokenizerJson(tokens, *pre), 1));
  MR_ASSIGN_OR_RETURN(files.tokenizer_config_json,
                      Dump(TokenizerConfigJson(gguf, tokens, architecture), 2));
  MR_RETURN_IF_ERROR(ParseTokenizerJson(files.tokenizer_json, "tokenizer").status());
  return files;
}

}  // namespace millrace
