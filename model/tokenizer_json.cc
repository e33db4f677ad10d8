#include "model/tokenizer_json.h"

#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/byte_level.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

using Json = nlohmann::json;

absl::Status Unsupported(const std::string& what) {
  return absl::UnimplementedError(absl::StrCat(what, " is not supported"));
}

std::string TypeOf(const Json& json) {
  return json.is_object() && json.contains("type") && json["type"].is_string()
             ? json["type"].get<std::string>()
             : json.dump().substr(0, 60);
}

// Null, false, "" and 0 all mean that a feature is off.
bool IsSet(const Json& object, const char* name) {
  const auto it = object.find(name);
  if (it == object.end() || it->is_null() || *it == false || *it == "") return false;
  return !(it->is_number() && *it == 0);
}

bool ReadId(const Json& json, int32_t* id) {
  if (!json.is_number_unsigned() ||
      json.get<uint64_t>() > std::numeric_limits<int32_t>::max() / 2) {
    return false;
  }
  *id = json.get<int32_t>();
  return true;
}

absl::Status ParseNormalizer(const Json& json, TokenizerParts* parts) {
  if (json.is_null()) return absl::OkStatus();
  if (TypeOf(json) != "NFC") return Unsupported(absl::StrCat("normalizer \"", TypeOf(json), "\""));
  parts->nfc = true;
  return absl::OkStatus();
}

absl::Status ParseSplit(const Json& json, Pretokenizer* pretokenizer) {
  if (!json.contains("pattern") || !json["pattern"].is_object() ||
      !json["pattern"].contains("Regex") || !json["pattern"]["Regex"].is_string()) {
    return Unsupported("pre-tokenizer \"Split\" without a \"Regex\" pattern");
  }
  if (json.value("behavior", Json()) != "Isolated" || IsSet(json, "invert")) {
    return Unsupported("pre-tokenizer \"Split\" other than \"Isolated\"");
  }
  MR_ASSIGN_OR_RETURN(auto step, RegexStep(json["pattern"]["Regex"].get<std::string>()));
  pretokenizer->Add(std::move(step));
  return absl::OkStatus();
}

absl::Status ParsePretokenizer(const Json& json, bool* byte_level, Pretokenizer* pretokenizer) {
  const std::string type = json.is_null() ? "null" : TypeOf(json);
  if (*byte_level) return Unsupported(absl::StrCat("pre-tokenizer \"", type, "\" after ByteLevel"));
  if (type == "Sequence") {
    if (!json.contains("pretokenizers") || !json["pretokenizers"].is_array()) {
      return absl::InvalidArgumentError("pre-tokenizer \"Sequence\" has no \"pretokenizers\"");
    }
    for (const Json& inner : json["pretokenizers"]) {
      if (TypeOf(inner) == "Sequence")
        return Unsupported("a pre-tokenizer \"Sequence\" in another");
      MR_RETURN_IF_ERROR(ParsePretokenizer(inner, byte_level, pretokenizer));
    }
    return absl::OkStatus();
  }
  if (type == "Digits") {
    if (!IsSet(json, "individual_digits")) {
      return Unsupported("pre-tokenizer \"Digits\" without \"individual_digits\"");
    }
    pretokenizer->Add(DigitsStep());
    return absl::OkStatus();
  }
  if (type == "Split") return ParseSplit(json, pretokenizer);
  if (type != "ByteLevel") return Unsupported(absl::StrCat("pre-tokenizer \"", type, "\""));
  if (IsSet(json, "add_prefix_space")) {
    return Unsupported("pre-tokenizer \"ByteLevel\" with \"add_prefix_space\"");
  }
  *byte_level = true;
  if (json.contains("use_regex") && !IsSet(json, "use_regex")) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(auto step, Gpt2Step());
  pretokenizer->Add(std::move(step));
  return absl::OkStatus();
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

absl::StatusOr<Bpe> ParseModel(const Json& model) {
  if (!model.is_object()) return absl::InvalidArgumentError("\"model\" is missing");
  // Old files leave the type out.
  if (model.contains("type") && TypeOf(model) != "BPE") {
    return Unsupported(absl::StrCat("model type \"", TypeOf(model), "\""));
  }
  for (const char* name :
       {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) {
    if (IsSet(model, name)) return Unsupported(absl::StrCat("model with \"", name, "\""));
  }
  if (!model.contains("vocab") || !model["vocab"].is_object() || model["vocab"].empty() ||
      !model.contains("merges") || !model["merges"].is_array()) {
    return absl::InvalidArgumentError("\"model\" needs a \"vocab\" object and a \"merges\" list");
  }
  Bpe::Spec spec;
  std::set<int32_t> ids;
  for (const auto& [text, value] : model["vocab"].items()) {
    int32_t id = 0;
    if (!ReadId(value, &id) || !ids.insert(id).second) {
      return absl::InvalidArgumentError(absl::StrCat("vocabulary entry \"", text, "\" has id ",
                                                     value.dump(), ", wrong or used twice"));
    }
    spec.vocab[text] = id;
  }
  spec.merges.resize(model["merges"].size());
  for (size_t i = 0; i < spec.merges.size(); ++i) {
    if (!ParseMerge(model["merges"][i], &spec.merges[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("merge ", i, " is ", model["merges"][i].dump(), ", expected two tokens"));
    }
  }
  if (IsSet(model, "unk_token") && model["unk_token"].is_string()) {
    const auto unk = spec.vocab.find(model["unk_token"].get<std::string>());
    if (unk != spec.vocab.end()) spec.unk_id = unk->second;
  }
  spec.ignore_merges = IsSet(model, "ignore_merges");
  return Bpe::Create(std::move(spec));
}

absl::Status ParseAdded(const Json& list, TokenizerParts* parts) {
  if (list.is_null()) return absl::OkStatus();
  std::set<int32_t> taken;
  for (const auto& [text, id] : parts->bpe.vocab()) taken.insert(id);
  for (const Json& json : list) {
    AddedToken token;
    if (!json.is_object() || !json.contains("id") || !ReadId(json["id"], &token.id) ||
        !json.contains("content") || !json["content"].is_string() || json["content"] == "") {
      return absl::InvalidArgumentError(
          absl::StrCat("added token ", json.dump().substr(0, 80), " needs an id and a content"));
    }
    token.text = json["content"].get<std::string>();
    token.special = IsSet(json, "special");
    for (const char* name : {"single_word", "lstrip", "rstrip"}) {
      if (IsSet(json, name)) {
        return Unsupported(absl::StrCat("added token \"", token.text, "\" with \"", name, "\""));
      }
    }
    const int32_t in_vocab = parts->bpe.TokenId(token.text);
    if (in_vocab >= 0 ? in_vocab != token.id : !taken.insert(token.id).second) {
      return absl::InvalidArgumentError(absl::StrCat("added token \"", token.text, "\" has id ",
                                                     token.id, ", which clashes with another"));
    }
    parts->added.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenizerParts> ParseParts(const Json& json) {
  TokenizerParts parts;
  const auto at = [&](const char* name) { return json.contains(name) ? json[name] : Json(); };
  MR_RETURN_IF_ERROR(ParseNormalizer(at("normalizer"), &parts));
  bool byte_level = false;
  MR_RETURN_IF_ERROR(ParsePretokenizer(at("pre_tokenizer"), &byte_level, &parts.pretokenizer));
  if (!byte_level) return Unsupported("a pre-tokenizer without \"ByteLevel\"");
  if (TypeOf(at("decoder")) != "ByteLevel") {
    return Unsupported(absl::StrCat("decoder \"", TypeOf(at("decoder")), "\""));
  }
  MR_ASSIGN_OR_RETURN(parts.bpe, ParseModel(at("model")));
  MR_RETURN_IF_ERROR(ParseAdded(at("added_tokens"), &parts));
  return parts;
}

}  // namespace

absl::StatusOr<TokenizerParts> ParseTokenizerJson(const std::string& text,
                                                  const std::string& file) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": not a JSON object"));
  }
  auto parts = ParseParts(json);
  if (!parts.ok()) {
    return absl::Status(parts.status().code(), absl::StrCat(file, ": ", parts.status().message()));
  }
  return parts;
}

absl::StatusOr<TokenizerConfig> ParseTokenizerConfig(const std::string& text,
                                                     const std::string& file) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": not a JSON object"));
  }
  TokenizerConfig config;
  if (const auto eos = json.find("eos_token"); eos != json.end()) {
    if (eos->is_string()) config.eos_token = eos->get<std::string>();
    if (eos->is_object() && eos->contains("content") && (*eos)["content"].is_string()) {
      config.eos_token = (*eos)["content"].get<std::string>();
    }
  }
  const auto chat = json.find("chat_template");
  if (chat == json.end()) return config;
  if (chat->is_string()) config.chat_template = chat->get<std::string>();
  if (chat->is_array()) {
    for (const Json& entry : *chat) {
      if (entry.is_object() && entry.value("name", Json()) == "default" &&
          entry.value("template", Json()).is_string()) {
        config.chat_template = entry["template"].get<std::string>();
      }
    }
  }
  return config;
}

std::string ByteTokenizerJson() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[ByteCharacter(static_cast<uint8_t>(byte))] = byte;
  Json added = Json::array();
  for (const char* text : {"<|pad|>", "<|im_start|>", "<|im_end|>"}) {
    added.push_back({{"id", 256 + added.size()},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", false}};
  const Json json = {{"version", "1.0"},
                     {"truncation", Json()},
                     {"padding", Json()},
                     {"added_tokens", added},
                     {"normalizer", Json()},
                     {"pre_tokenizer", byte_level},
                     {"post_processor", Json()},
                     {"decoder", byte_level},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", Json()},
                       {"unk_token", Json()},
                       {"continuing_subword_prefix", Json()},
                       {"end_of_word_suffix", Json()},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", false},
                       {"vocab", vocab},
                       {"merges", Json::array()}}}};
  return json.dump(1) + "\n";
}

std::string ByteTokenizerConfigJson() {
  const Json json = {
      {"tokenizer_class", "PreTrainedTokenizerFast"},
      {"clean_up_tokenization_spaces", false},
      {"eos_token", "<|im_end|>"},
      {"pad_token", "<|pad|>"},
      {"chat_template",
       "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' "
       "+ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif "
       "%}"}};
  return json.dump(2) + "\n";
}

}  // namespace millrace
