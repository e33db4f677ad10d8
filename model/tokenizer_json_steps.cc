#include "model/tokenizer_json_steps.h"

#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/json_checks.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

absl::Status Broken(const std::string& what) { return absl::InvalidArgumentError(what); }

std::string Quoted(const char* kind, const std::string& type) {
  return absl::StrCat(kind, " \"", type, "\"");
}

// Keys besides "type" that a step may have.
absl::Status CheckKeys(const Json& json, const std::string& step,
                       std::initializer_list<absl::string_view> known) {
  for (const auto& [key, value] : json.items()) {
    if (key == "type") continue;
    bool found = false;
    for (absl::string_view k : known) found = found || key == k;
    if (!found) return UnsupportedInTokenizer(absl::StrCat(step, " with \"", key, "\""));
  }
  return absl::OkStatus();
}

absl::Status GetString(const Json& json, const char* name, const std::string& step,
                       std::string* out) {
  const auto it = json.find(name);
  if (it == json.end() || !it->is_string()) {
    return Broken(absl::StrCat(step, " needs a string \"", name, "\""));
  }
  *out = it->get<std::string>();
  return absl::OkStatus();
}

absl::StatusOr<const Json*> ListOf(const Json& json, const char* name, const std::string& step) {
  const auto it = json.find(name);
  if (it == json.end() || !it->is_array()) {
    return Broken(absl::StrCat(step, " needs a list \"", name, "\""));
  }
  return &*it;
}

// {"String": "x"}, not empty; regular expressions are refused.
absl::Status LiteralPattern(const Json& json, const std::string& step, std::string* out) {
  const auto it = json.find("pattern");
  if (it == json.end() || !it->is_object() || !it->contains("String")) {
    return UnsupportedInTokenizer(absl::StrCat(step, " without a \"String\" pattern"));
  }
  MR_RETURN_IF_ERROR(GetString(*it, "String", step, out));
  return out->empty() ? Broken(absl::StrCat(step, " has an empty pattern")) : absl::OkStatus();
}

absl::StatusOr<SplitOptions> ParseSplitOptions(const Json& json) {
  static constexpr std::pair<absl::string_view, SplitBehavior> kBehaviors[] = {
      {"Isolated", SplitBehavior::kIsolated},
      {"Removed", SplitBehavior::kRemoved},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous}};
  SplitOptions options;
  options.invert = IsFeatureSet(json, "invert");
  const auto behavior = json.find("behavior");
  for (const auto& [name, value] : kBehaviors) {
    if (behavior == json.end() || *behavior != std::string(name)) continue;
    options.behavior = value;
    return options;
  }
  return UnsupportedInTokenizer(
      absl::StrCat("pre-tokenizer \"Split\" with behavior ",
                   behavior == json.end() ? "missing" : ShownJson(*behavior)));
}

absl::Status ParseSplit(const Json& json, Pretokenizer* pretokenizer) {
  const std::string step = "pre-tokenizer \"Split\"";
  MR_RETURN_IF_ERROR(CheckKeys(json, step, {"pattern", "behavior", "invert"}));
  MR_ASSIGN_OR_RETURN(const SplitOptions options, ParseSplitOptions(json));
  const auto pattern = json.find("pattern");
  if (pattern != json.end() && pattern->is_object() && pattern->contains("Regex")) {
    std::string regex;
    MR_RETURN_IF_ERROR(GetString(*pattern, "Regex", step, &regex));
    MR_ASSIGN_OR_RETURN(auto cut, RegexStep(regex, options));
    pretokenizer->Add(std::move(cut));
    return absl::OkStatus();
  }
  std::string literal;
  MR_RETURN_IF_ERROR(LiteralPattern(json, step, &literal));
  pretokenizer->Add(LiteralStep(literal, options));
  return absl::OkStatus();
}

absl::StatusOr<Metaspace> ParseMetaspaceFields(const Json& json, const std::string& step) {
  MR_RETURN_IF_ERROR(CheckKeys(
      json, step, {"replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"}));
  Metaspace out;
  MR_RETURN_IF_ERROR(GetString(json, "replacement", step, &out.replacement));
  if (out.replacement.empty()) return Broken(absl::StrCat(step, " has an empty replacement"));
  // Old files say add_prefix_space where new ones have a scheme.
  const bool add = !json.contains("add_prefix_space") || IsFeatureSet(json, "add_prefix_space");
  const Json scheme = json.value("prepend_scheme", Json(add ? "always" : "never"));
  if (scheme == "first") {
    out.prepend = Metaspace::Prepend::kFirst;
  } else if (scheme == "never") {
    out.prepend = Metaspace::Prepend::kNever;
  } else if (scheme != "always") {
    return UnsupportedInTokenizer(absl::StrCat(step, " with prepend_scheme ", ShownJson(scheme)));
  }
  return out;
}

absl::Status ParseMetaspace(const Json& json, bool only_step, TokenizerParts* parts) {
  const std::string step = "pre-tokenizer \"Metaspace\"";
  if (!only_step) return UnsupportedInTokenizer(absl::StrCat(step, " after another one"));
  MR_ASSIGN_OR_RETURN(parts->metaspace, ParseMetaspaceFields(json, step));
  if (json.contains("split") && !IsFeatureSet(json, "split")) return absl::OkStatus();
  SplitOptions options;
  options.behavior = SplitBehavior::kMergedWithNext;
  parts->pretokenizer.Add(LiteralStep(parts->metaspace->replacement, options));
  return absl::OkStatus();
}

absl::Status ParseByteLevel(const Json& json, Pretokenizer* pretokenizer) {
  const std::string step = "pre-tokenizer \"ByteLevel\"";
  MR_RETURN_IF_ERROR(CheckKeys(json, step, {"add_prefix_space", "trim_offsets", "use_regex"}));
  if (IsFeatureSet(json, "add_prefix_space")) {
    return UnsupportedInTokenizer(absl::StrCat(step, " with \"add_prefix_space\""));
  }
  if (!json.contains("use_regex") || IsFeatureSet(json, "use_regex")) {
    pretokenizer->Add(WordStep(WordRule::kGpt2));
  }
  return absl::OkStatus();
}

absl::Status ParseStrip(const Json& json, TokenDecoder* decoder) {
  const std::string name = "decoder \"Strip\"";
  TokenDecoder::Step step{TokenDecoder::Kind::kStrip};
  MR_RETURN_IF_ERROR(CheckKeys(json, name, {"content", "start", "stop"}));
  MR_RETURN_IF_ERROR(GetString(json, "content", name, &step.from));
  const Json start = json.value("start", Json()), stop = json.value("stop", Json());
  if (step.from.empty() || !start.is_number_unsigned() || !stop.is_number_unsigned()) {
    return Broken(absl::StrCat(name, " needs content, start and stop"));
  }
  step.start = start.get<size_t>();
  step.stop = stop.get<size_t>();
  decoder->Add(std::move(step));
  return absl::OkStatus();
}

// One TemplateProcessing: special tokens around the sequence A.
absl::Status ParseTemplate(const Json& json, TokenizerParts* parts) {
  const std::string name = "post-processor \"TemplateProcessing\"";
  MR_RETURN_IF_ERROR(CheckKeys(json, name, {"single", "pair", "special_tokens"}));
  MR_ASSIGN_OR_RETURN(const Json* single, ListOf(json, "single", name));
  const Json tokens = json.value("special_tokens", Json::object());
  bool behind = false;
  for (const Json& item : *single) {
    if (item.is_object() && item.contains("Sequence") && !behind) {
      behind = true;
      continue;
    }
    const Json special = item.is_object() ? item.value("SpecialToken", Json()) : Json();
    const Json id = special.is_object() ? special.value("id", Json()) : Json();
    if (!id.is_string()) {
      return UnsupportedInTokenizer(absl::StrCat(name, " with ", ShownJson(item)));
    }
    const Json known = tokens.is_object() ? tokens.value(id.get<std::string>(), Json()) : Json();
    const Json ids = known.is_object() ? known.value("ids", Json()) : Json();
    if (!ids.is_array()) {
      return Broken(absl::StrCat(name, " names ", ShownJson(id), ", which has no ids"));
    }
    for (const Json& value : ids) {
      if (!value.is_number_unsigned() || value.get<uint64_t>() > (1u << 30)) {
        return Broken(absl::StrCat(name, " has the id ", ShownJson(value)));
      }
      (behind ? parts->suffix : parts->prefix).push_back(value.get<int32_t>());
    }
  }
  return behind ? absl::OkStatus() : Broken(absl::StrCat(name, " has no sequence in \"single\""));
}

}  // namespace

absl::Status UnsupportedInTokenizer(const std::string& what) {
  return absl::UnimplementedError(absl::StrCat(what, " is not supported"));
}

std::string TypeOfStep(const Json& json) {
  if (!json.is_object()) return ShownJson(json);
  const auto it = json.find("type");
  return it != json.end() && it->is_string() ? it->get<std::string>() : ShownJson(json);
}

bool IsFeatureSet(const Json& object, const char* name) {
  const auto it = object.find(name);
  if (it == object.end() || it->is_null() || *it == false || *it == "") return false;
  return !(it->is_number() && *it == 0);
}

absl::Status ParseNormalizer(const Json& json, Normalizer* normalizer) {
  if (json.is_null()) return absl::OkStatus();
  const std::string type = TypeOfStep(json), step = Quoted("normalizer", type);
  static constexpr std::pair<absl::string_view, Normalizer::Kind> kForms[] = {
      {"NFC", Normalizer::Kind::kNfc},
      {"NFD", Normalizer::Kind::kNfd},
      {"NFKC", Normalizer::Kind::kNfkc},
      {"NFKD", Normalizer::Kind::kNfkd}};
  for (const auto& [name, form] : kForms) {
    if (type == name) {
      normalizer->AddUnicode(form);
      return CheckKeys(json, step, {});
    }
  }
  if (type == "Sequence") {
    MR_ASSIGN_OR_RETURN(const Json* list, ListOf(json, "normalizers", step));
    for (const Json& inner : *list) MR_RETURN_IF_ERROR(ParseNormalizer(inner, normalizer));
    return CheckKeys(json, step, {"normalizers"});
  }
  std::string from, to;
  if (type == "Prepend") {
    MR_RETURN_IF_ERROR(CheckKeys(json, step, {"prepend"}));
    MR_RETURN_IF_ERROR(GetString(json, "prepend", step, &to));
    normalizer->AddPrepend(to);
    return absl::OkStatus();
  }
  if (type != "Replace") return UnsupportedInTokenizer(step);
  MR_RETURN_IF_ERROR(CheckKeys(json, step, {"pattern", "content"}));
  MR_RETURN_IF_ERROR(LiteralPattern(json, step, &from));
  MR_RETURN_IF_ERROR(GetString(json, "content", step, &to));
  normalizer->AddReplace(from, to);
  return absl::OkStatus();
}

absl::Status ParsePretokenizer(const Json& json, bool* byte_level, TokenizerParts* parts) {
  if (json.is_null()) return absl::OkStatus();
  const std::string type = TypeOfStep(json), step = Quoted("pre-tokenizer", type);
  if (type == "Sequence") {
    MR_ASSIGN_OR_RETURN(const Json* list, ListOf(json, "pretokenizers", step));
    MR_RETURN_IF_ERROR(CheckKeys(json, step, {"pretokenizers"}));
    for (const Json& inner : *list) {
      MR_RETURN_IF_ERROR(ParsePretokenizer(inner, byte_level, parts));
    }
    return absl::OkStatus();
  }
  if (*byte_level) return UnsupportedInTokenizer(absl::StrCat(step, " after ByteLevel"));
  if (type == "Digits") {
    MR_RETURN_IF_ERROR(CheckKeys(json, step, {"individual_digits"}));
    parts->pretokenizer.Add(DigitsStep(IsFeatureSet(json, "individual_digits")));
    return absl::OkStatus();
  }
  if (type == "Split") return ParseSplit(json, &parts->pretokenizer);
  if (type == "Metaspace") {
    return ParseMetaspace(json, parts->pretokenizer.empty() && !parts->metaspace, parts);
  }
  if (type != "ByteLevel") return UnsupportedInTokenizer(step);
  *byte_level = true;
  return ParseByteLevel(json, &parts->pretokenizer);
}

absl::Status ParseDecoder(const Json& json, TokenDecoder* decoder) {
  const std::string type = TypeOfStep(json), name = Quoted("decoder", type);
  if (type == "Sequence") {
    MR_ASSIGN_OR_RETURN(const Json* list, ListOf(json, "decoders", name));
    for (const Json& inner : *list) MR_RETURN_IF_ERROR(ParseDecoder(inner, decoder));
    return CheckKeys(json, name, {"decoders"});
  }
  TokenDecoder::Step step{TokenDecoder::Kind::kFuse};
  if (type == "ByteLevel") {
    step.kind = TokenDecoder::Kind::kByteLevel;
  } else if (type == "ByteFallback") {
    step.kind = TokenDecoder::Kind::kByteFallback;
  } else if (type == "Replace") {
    step.kind = TokenDecoder::Kind::kReplace;
    MR_RETURN_IF_ERROR(CheckKeys(json, name, {"pattern", "content"}));
    MR_RETURN_IF_ERROR(LiteralPattern(json, name, &step.from));
    MR_RETURN_IF_ERROR(GetString(json, "content", name, &step.to));
  } else if (type == "Strip") {
    return ParseStrip(json, decoder);
  } else if (type == "Metaspace") {
    MR_ASSIGN_OR_RETURN(const Metaspace fields, ParseMetaspaceFields(json, name));
    step.kind = TokenDecoder::Kind::kMetaspace;
    step.from = fields.replacement;
    step.drop_first = fields.prepend != Metaspace::Prepend::kNever;
  } else if (type != "Fuse") {
    return UnsupportedInTokenizer(name);
  }
  decoder->Add(std::move(step));
  return absl::OkStatus();
}

absl::Status ParsePostProcessor(const Json& json, TokenizerParts* parts) {
  if (json.is_null()) return absl::OkStatus();
  const std::string type = TypeOfStep(json), name = Quoted("post-processor", type);
  if (type == "ByteLevel") return absl::OkStatus();  // changes offsets only
  if (type == "Sequence") {
    MR_ASSIGN_OR_RETURN(const Json* list, ListOf(json, "processors", name));
    for (const Json& inner : *list) MR_RETURN_IF_ERROR(ParsePostProcessor(inner, parts));
    return absl::OkStatus();
  }
  if (type != "TemplateProcessing") return UnsupportedInTokenizer(name);
  if (!parts->prefix.empty() || !parts->suffix.empty()) {
    return UnsupportedInTokenizer(absl::StrCat("a second ", name));
  }
  return ParseTemplate(json, parts);
}

}  // namespace millrace
