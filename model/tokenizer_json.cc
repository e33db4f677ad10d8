#include "model/tokenizer_json.h"

#include <set>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/byte_level.h"
#include "model/json_checks.h"
#include "model/tokenizer_json_steps.h"
#include "model/tokenizer_json_writer.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

using Json = nlohmann::json;

// Ids index tables, so a file can't ask for more than this.
constexpr uint64_t kMostIds = 1 << 21;

bool ReadId(const Json& json, int32_t* id) {
  if (!json.is_number_unsigned() || json.get<uint64_t>() >= kMostIds) return false;
  *id = json.get<int32_t>();
  return true;
}

absl::Status CheckTopKeys(const Json& json) {
  static constexpr absl::string_view kKnown[] = {"version",        "truncation", "padding",
                                                 "added_tokens",   "normalizer", "pre_tokenizer",
                                                 "post_processor", "decoder",    "model"};
  for (const auto& [key, value] : json.items()) {
    bool known = false;
    for (absl::string_view k : kKnown) known = known || key == k;
    if (!known) return UnsupportedInTokenizer(absl::StrCat("the field \"", key, "\""));
  }
  const auto version = json.find("version");
  if (version == json.end() || *version == "1.0") return absl::OkStatus();
  return UnsupportedInTokenizer(absl::StrCat("version ", ShownJson(*version)));
}

// A merge is ["a", "b"] or "a b".
bool ParseMerge(const Json& json, std::pair<std::string, std::string>* merge) {
  if (json.is_array() && json.size() == 2 && json[0].is_string() && json[1].is_string()) {
    *merge = {json[0].get<std::string>(), json[1].get<std::string>()};
    return true;
  }
  if (!json.is_string()) return false;
  const std::string text = json.get<std::string>();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) return false;
  *merge = {text.substr(0, space), text.substr(space + 1)};
  return true;
}

absl::Status CheckModel(const Json& model) {
  if (!model.is_object()) return absl::InvalidArgumentError("\"model\" is missing");
  // Old files leave the type out.
  if (model.contains("type") && TypeOfStep(model) != "BPE") {
    return UnsupportedInTokenizer(absl::StrCat("model type \"", TypeOfStep(model), "\""));
  }
  static constexpr absl::string_view kKnown[] = {"type",   "unk_token",     "fuse_unk",     "vocab",
                                                 "merges", "ignore_merges", "byte_fallback"};
  for (const auto& [key, value] : model.items()) {
    bool known = !IsFeatureSet(model, key.c_str());
    for (absl::string_view k : kKnown) known = known || key == k;
    if (!known) return UnsupportedInTokenizer(absl::StrCat("model with \"", key, "\""));
  }
  if (!model.contains("vocab") || !model["vocab"].is_object() || model["vocab"].empty() ||
      !model.contains("merges") || !model["merges"].is_array()) {
    return absl::InvalidArgumentError("\"model\" needs a \"vocab\" object and a \"merges\" list");
  }
  return absl::OkStatus();
}

absl::StatusOr<Bpe> ParseModel(const Json& model, bool byte_level) {
  MR_RETURN_IF_ERROR(CheckModel(model));
  Bpe::Spec spec;
  spec.byte_level = byte_level;
  absl::flat_hash_set<int32_t> ids;
  for (const auto& [text, value] : model["vocab"].items()) {
    int32_t id = 0;
    if (!ReadId(value, &id) || !ids.insert(id).second) {
      return absl::InvalidArgumentError(absl::StrCat("vocabulary entry \"", text, "\" has id ",
                                                     ShownJson(value), ", wrong or used twice"));
    }
    spec.vocab[text] = id;
  }
  const Json& merges = model["merges"];
  spec.merges.resize(merges.size());
  for (size_t i = 0; i < spec.merges.size(); ++i) {
    if (!ParseMerge(merges[i], &spec.merges[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("merge ", i, " is ", ShownJson(merges[i]), ", expected two tokens"));
    }
  }
  if (IsFeatureSet(model, "unk_token")) {
    const auto unk = model["unk_token"].is_string()
                         ? spec.vocab.find(model["unk_token"].get<std::string>())
                         : spec.vocab.end();
    if (unk == spec.vocab.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("unk_token ", ShownJson(model["unk_token"]), " is not in the vocabulary"));
    }
    spec.unk_id = unk->second;
  }
  spec.fuse_unk = IsFeatureSet(model, "fuse_unk");
  spec.byte_fallback = IsFeatureSet(model, "byte_fallback");
  if (byte_level && spec.byte_fallback) {
    return UnsupportedInTokenizer("\"byte_fallback\" under a ByteLevel pre-tokenizer");
  }
  spec.ignore_merges = IsFeatureSet(model, "ignore_merges");
  return Bpe::Create(std::move(spec));
}

absl::StatusOr<AddedToken> ParseAddedToken(const Json& json) {
  AddedToken token;
  if (!json.is_object() || !json.contains("id") || !ReadId(json["id"], &token.id) ||
      !json.contains("content") || !json["content"].is_string() || json["content"] == "") {
    return absl::InvalidArgumentError(
        absl::StrCat("added token ", ShownJson(json), " needs an id and a content"));
  }
  token.text = json["content"].get<std::string>();
  token.special = IsFeatureSet(json, "special");
  token.normalized = IsFeatureSet(json, "normalized");
  token.single_word = IsFeatureSet(json, "single_word");
  token.lstrip = IsFeatureSet(json, "lstrip");
  token.rstrip = IsFeatureSet(json, "rstrip");
  return token;
}

absl::Status ParseAdded(const Json& list, TokenizerParts* parts) {
  if (list.is_null()) return absl::OkStatus();
  if (!list.is_array()) return absl::InvalidArgumentError("\"added_tokens\" is no list");
  absl::flat_hash_set<int32_t> taken;
  absl::flat_hash_set<std::string> texts;
  for (const auto& [text, id] : parts->bpe.vocab()) taken.insert(id);
  for (const Json& json : list) {
    MR_ASSIGN_OR_RETURN(AddedToken token, ParseAddedToken(json));
    const int32_t in_vocab = parts->bpe.TokenId(token.text);
    if (in_vocab >= 0 ? in_vocab != token.id : !taken.insert(token.id).second) {
      return absl::InvalidArgumentError(absl::StrCat("added token \"", token.text, "\" has id ",
                                                     token.id, ", which clashes with another"));
    }
    if (!texts.insert(token.text).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("added token \"", token.text, "\" is there twice"));
    }
    parts->added.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenizerParts> ParseParts(const Json& json) {
  static const Json* const kNull = new Json();
  TokenizerParts parts;
  const auto at = [&](const char* name) -> const Json& {
    const auto it = json.find(name);
    return it == json.end() ? *kNull : *it;
  };
  MR_RETURN_IF_ERROR(CheckTopKeys(json));
  MR_RETURN_IF_ERROR(ParseNormalizer(at("normalizer"), &parts.normalizer));
  bool byte_level = false;
  MR_RETURN_IF_ERROR(ParsePretokenizer(at("pre_tokenizer"), &byte_level, &parts));
  MR_RETURN_IF_ERROR(ParseDecoder(at("decoder"), &parts.decoder));
  if (byte_level && parts.metaspace) {
    return UnsupportedInTokenizer("a pre-tokenizer with both Metaspace and ByteLevel");
  }
  if (byte_level != parts.decoder.byte_level()) {
    return UnsupportedInTokenizer(absl::StrCat("pre-tokenizer ", TypeOfStep(at("pre_tokenizer")),
                                               " with decoder ", TypeOfStep(at("decoder")),
                                               " (ByteLevel in one of them only)"));
  }
  MR_ASSIGN_OR_RETURN(parts.bpe, ParseModel(at("model"), byte_level));
  MR_RETURN_IF_ERROR(ParseAdded(at("added_tokens"), &parts));
  MR_RETURN_IF_ERROR(ParsePostProcessor(at("post_processor"), &parts));
  return parts;
}

absl::Status WithFile(const absl::Status& status, const std::string& file) {
  return absl::Status(status.code(), absl::StrCat(file, ": ", status.message()));
}

absl::StatusOr<Json> ParseObject(const std::string& text, const std::string& file) {
  MR_ASSIGN_OR_RETURN(Json json, ParseForeignJson<Json>(text, file));
  if (json.is_object()) return json;
  return absl::InvalidArgumentError(absl::StrCat(file, ": not a JSON object"));
}

absl::Status ParseChatTemplates(const Json& chat, const std::string& file,
                                std::map<std::string, std::string>* out) {
  if (chat.is_null()) return absl::OkStatus();
  if (chat.is_string()) {
    (*out)["default"] = chat.get<std::string>();
    return absl::OkStatus();
  }
  const auto bad = [&](const Json& json) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": chat_template ", ShownJson(json),
                     " is neither text nor a list of {name, template}"));
  };
  if (!chat.is_array()) return bad(chat);
  for (const Json& entry : chat) {
    const bool good = entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
                      entry.contains("template") && entry["template"].is_string();
    if (!good) return bad(entry);
    (*out)[entry["name"].get<std::string>()] = entry["template"].get<std::string>();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerParts> ParseTokenizerJson(const std::string& text,
                                                  const std::string& file) {
  MR_ASSIGN_OR_RETURN(const Json json, ParseObject(text, file));
  auto parts = ParseParts(json);
  if (!parts.ok()) return WithFile(parts.status(), file);
  return parts;
}

absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const std::string& text,
                                                     const std::string& file) {
  MR_ASSIGN_OR_RETURN(const Json json, ParseObject(text, file));
  TokenizerConfig config;
  for (const auto& [key, value] : json.items()) {
    if (!absl::EndsWith(key, "_token")) continue;
    // Either the text or {"content": text, ...}.
    const Json content = value.is_object() ? value.value("content", Json()) : value;
    if (content.is_string()) config.special_tokens[key] = content.get<std::string>();
  }
  const auto chat = json.find("chat_template");
  if (chat != json.end()) {
    MR_RETURN_IF_ERROR(ParseChatTemplates(*chat, file, &config.chat_templates));
  }
  return config;
}

const char* const kChatMl =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' "
    "+ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

std::string ByteTokenizerJson() {
  TokenizerJsonParts parts;
  for (int byte = 0; byte < 256; ++byte) {
    parts.vocab[ByteCharacter(static_cast<uint8_t>(byte))] = byte;
  }
  for (const char* text : {"<|pad|>", "<|im_start|>", "<|im_end|>"}) {
    Json token = AddedTokenJson(text, true);
    token["id"] = 256 + parts.added.size();
    parts.added.push_back(std::move(token));
  }
  parts.pre_tokenizer = {{"type", "ByteLevel"},
                         {"add_prefix_space", false},
                         {"trim_offsets", true},
                         {"use_regex", false}};
  parts.decoder = parts.pre_tokenizer;
  return TokenizerJsonOf(std::move(parts)).dump(1) + "\n";
}

std::string ByteTokenizerConfigJson() {
  const Json json = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                     {"clean_up_tokenization_spaces", false},
                     {"eos_token", "<|im_end|>"},
                     {"pad_token", "<|pad|>"},
                     {"chat_template", kChatMl}};
  return json.dump(2) + "\n";
}

}  // namespace millrace
