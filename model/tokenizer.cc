#include "model/tokenizer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "model/byte_level.h"
#include "model/jinja/template.h"
#include "model/tokenizer_json.h"

namespace millrace {
namespace {

// Kept beside tokenizer.json when a tokenizer is saved again.
constexpr const char* kFiles[] = {"tokenizer.json", "tokenizer_config.json",
                                  "special_tokens_map.json", "chat_template.jinja"};
// Templates by other names than "default", each NAME.jinja.
constexpr char kTemplateFolder[] = "additional_chat_templates";
constexpr char kTemplateEnding[] = ".jinja";

bool IsValidUtf8(absl::string_view bytes) {
  while (!bytes.empty()) {
    const int length = Utf8CharacterLength(bytes);
    if (length == 0) return false;
    bytes.remove_prefix(length);
  }
  return true;
}

bool Overlaps(absl::Span<const TextRange> ranges, TextRange range) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const TextRange& r) {
    return r.begin < range.end && range.begin < r.end;
  });
}

bool Within(absl::Span<const TextRange> ranges, TextRange range) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const TextRange& r) {
    return r.begin <= range.begin && range.end <= r.end;
  });
}

// A text on its way to tokens, with ranges that move along with its bytes.
struct Segment {
  absl::string_view text;
  std::vector<TextRange> special_in, marked;

  // The ranges that touch `range`, relative to its begin.
  static std::vector<TextRange> Cut(absl::Span<const TextRange> ranges, TextRange range) {
    std::vector<TextRange> out;
    for (const TextRange& r : ranges) {
      const size_t begin = std::max(r.begin, range.begin), end = std::min(r.end, range.end);
      if (begin < end) out.push_back({begin - range.begin, end - range.begin});
    }
    return out;
  }
  Segment Part(TextRange range) const {
    return {text.substr(range.begin, range.end - range.begin), Cut(special_in, range),
            Cut(marked, range)};
  }
};

// What a change makes of a text; a view of the storage, or of the text itself.
using Change = absl::FunctionRef<absl::string_view(absl::string_view, std::string* storage)>;

// Applies `change` and moves the ranges: a range begins where what is before it ends.
Segment Changed(const Segment& segment, Change change, std::string* storage) {
  Segment out;
  out.text = change(segment.text, storage);
  const bool same = out.text.data() == segment.text.data();
  const auto moved = [&](size_t at) {
    if (same) return at;
    if (at == segment.text.size()) return out.text.size();
    std::string scratch;
    return std::min(change(segment.text.substr(0, at), &scratch).size(), out.text.size());
  };
  for (const TextRange& r : segment.special_in) {
    out.special_in.push_back({moved(r.begin), moved(r.end)});
  }
  for (const TextRange& r : segment.marked) out.marked.push_back({moved(r.begin), moved(r.end)});
  return out;
}

absl::string_view WithMetaspace(const Metaspace& metaspace, bool first, absl::string_view text,
                                std::string* storage) {
  if (text.empty()) return text;
  std::string out = absl::StrReplaceAll(text, {{" ", metaspace.replacement}});
  const bool prepend = metaspace.prepend == Metaspace::Prepend::kAlways ||
                       (metaspace.prepend == Metaspace::Prepend::kFirst && first);
  if (prepend && !absl::StartsWith(out, metaspace.replacement)) {
    out.insert(0, metaspace.replacement);
  }
  *storage = std::move(out);
  return *storage;
}

}  // namespace

struct Tokenizer::Impl {
  struct Token {
    std::string text;   // as the vocabulary spells it
    std::string bytes;  // what it stands for
    bool special = false;
  };
  // Where ids go, and whether marks are wanted.
  struct Sink {
    std::vector<int32_t>* ids;
    std::vector<uint8_t>* marks;  // may be null
  };

  TokenizerParts parts;
  std::vector<Token> tokens;                           // by id
  std::unordered_map<std::string, int32_t> added_ids;  // by text
  AddedTokenFinder raw_finder, normalized_finder;
  TokenizerConfig config;
  int32_t eos_id = -1;
  std::map<std::string, absl::StatusOr<std::shared_ptr<const jinja::Template>>> chat_templates;
  std::vector<std::pair<std::string, std::string>> files;  // name, contents

  void Index();
  void ReadTemplates();
  absl::Status ReadTemplateFolder(const std::string& dir);
  absl::Status ReadFiles(const std::string& dir);
  void Encode(const Segment& whole, Sink sink) const;
  void EncodeSegment(const Segment& segment, bool first, Sink sink) const;
  void EncodeWords(const Segment& segment, bool first, Sink sink) const;
  void MarkWord(absl::Span<const TextRange> marked, absl::string_view word, size_t offset,
                size_t first_id, Sink sink) const;
};

void Tokenizer::Impl::Index() {
  const auto place = [&](int32_t id, const std::string& text) -> Token& {
    if (static_cast<size_t>(id) >= tokens.size()) tokens.resize(id + 1);
    tokens[id].text = text;
    tokens[id].bytes = parts.decoder.BytesOf(text);
    return tokens[id];
  };
  for (const auto& [text, id] : parts.bpe.vocab()) place(id, text);
  for (const AddedToken& added : parts.added) {
    place(added.id, added.text).special = added.special;
    added_ids[added.text] = added.id;
    std::string storage;
    if (added.normalized && !parts.normalizer.identity()) {
      const absl::string_view pattern = parts.normalizer.Apply(added.text, &storage);
      if (!pattern.empty()) normalized_finder.Add(added, std::string(pattern));
    } else {
      raw_finder.Add(added, added.text);
    }
  }
  raw_finder.Finish();
  normalized_finder.Finish();
  ReadTemplates();
}

void Tokenizer::Impl::ReadTemplates() {
  if (config.chat_templates.empty() && added_ids.count("<|im_start|>") > 0 &&
      added_ids.count("<|im_end|>") > 0) {
    config.chat_templates["default"] = kChatMl;
  }
  for (const auto& [name, source] : config.chat_templates) {
    auto parsed = jinja::Template::Parse(source);
    if (!parsed.ok()) {
      parsed = absl::Status(parsed.status().code(), absl::StrCat("chat template \"", name, "\", ",
                                                                 parsed.status().message()));
    }
    chat_templates.emplace(name, std::move(parsed));
  }
}

void Tokenizer::Impl::Encode(const Segment& whole, Sink sink) const {
  const auto allowed = [&](TextRange range) { return Within(whole.special_in, range); };
  raw_finder.Cut(whole.text, allowed, [&](TextRange range, const AddedToken* token) {
    if (token == nullptr) return EncodeSegment(whole.Part(range), range.begin == 0, sink);
    sink.ids->push_back(token->id);
    if (sink.marks != nullptr) sink.marks->push_back(Overlaps(whole.marked, range));
  });
}

void Tokenizer::Impl::EncodeSegment(const Segment& segment, bool first, Sink sink) const {
  if (parts.normalizer.identity()) return EncodeWords(segment, first, sink);
  std::string storage;
  const Segment normal = Changed(
      segment,
      [&](absl::string_view text, std::string* out) { return parts.normalizer.Apply(text, out); },
      &storage);
  if (normalized_finder.empty()) return EncodeWords(normal, first, sink);
  const auto allowed = [&](TextRange range) { return Within(normal.special_in, range); };
  normalized_finder.Cut(normal.text, allowed, [&](TextRange range, const AddedToken* token) {
    if (token == nullptr) return EncodeWords(normal.Part(range), first && range.begin == 0, sink);
    sink.ids->push_back(token->id);
    if (sink.marks != nullptr) sink.marks->push_back(Overlaps(normal.marked, range));
  });
}

void Tokenizer::Impl::EncodeWords(const Segment& segment, bool first, Sink sink) const {
  if (parts.metaspace.has_value()) {
    std::string storage;
    const Segment spaced = Changed(
        segment,
        [&](absl::string_view text, std::string* out) {
          return WithMetaspace(*parts.metaspace, first, text, out);
        },
        &storage);
    parts.pretokenizer.Split(spaced.text, [&](absl::string_view word) {
      const size_t first_id = sink.ids->size();
      parts.bpe.Encode(word, sink.ids);
      MarkWord(spaced.marked, word, word.data() - spaced.text.data(), first_id, sink);
    });
    return;
  }
  parts.pretokenizer.Split(segment.text, [&](absl::string_view word) {
    const size_t first_id = sink.ids->size();
    parts.bpe.Encode(word, sink.ids);
    MarkWord(segment.marked, word, word.data() - segment.text.data(), first_id, sink);
  });
}

// Marks the ids from `first_id` on, which `word` at `offset` became.
void Tokenizer::Impl::MarkWord(absl::Span<const TextRange> marked, absl::string_view word,
                               size_t offset, size_t first_id, Sink sink) const {
  if (sink.marks == nullptr) return;
  const size_t end = offset + word.size();
  for (size_t i = first_id; i < sink.ids->size(); ++i) {
    const int32_t id = (*sink.ids)[i];
    size_t length = 1;  // of a byte token
    if (id == parts.bpe.unk_id()) {
      length = std::max(1, Utf8CharacterLength(word.substr(word.size() - (end - offset))));
    } else if (parts.bpe.byte_level()) {
      length = tokens[id].bytes.size();
    } else if (Bpe::ByteOfFallback(tokens[id].text) < 0) {
      length = tokens[id].text.size();
    }
    const size_t next = i + 1 == sink.ids->size() ? end : std::min(end, offset + length);
    sink.marks->push_back(Overlaps(marked, {offset, next}));
    offset = next;
  }
}

absl::Status Tokenizer::Impl::ReadTemplateFolder(const std::string& dir) {
  const std::string folder = JoinPath(dir, kTemplateFolder);
  if (!FileExists(folder)) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(folder));
  for (const std::string& name : names) {
    if (!absl::EndsWith(name, kTemplateEnding)) continue;
    MR_ASSIGN_OR_RETURN(std::string text, ReadFile(JoinPath(folder, name)));
    files.emplace_back(absl::StrCat(kTemplateFolder, "/", name), std::move(text));
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Impl::ReadFiles(const std::string& dir) {
  for (const char* name : kFiles) {
    const std::string path = JoinPath(dir, name);
    if (!FileExists(path)) continue;
    MR_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
    files.emplace_back(name, std::move(text));
  }
  MR_RETURN_IF_ERROR(ReadTemplateFolder(dir));
  bool found = false;
  std::map<std::string, std::string> templates;
  for (const auto& [name, text] : files) {
    const std::string path = JoinPath(dir, name);
    absl::string_view named = name;
    if (name == "tokenizer.json") {
      MR_ASSIGN_OR_RETURN(parts, ParseTokenizerJson(text, path));
      found = true;
    } else if (name == "tokenizer_config.json") {
      MR_ASSIGN_OR_RETURN(config, ParseTokenizerConfig(text, path));
    } else if (name == "chat_template.jinja") {
      templates["default"] = text;
    } else if (absl::ConsumePrefix(&named, absl::StrCat(kTemplateFolder, "/"))) {
      templates[std::string(absl::StripSuffix(named, kTemplateEnding))] = text;
    }
  }
  // Template files stand for all that the config has, as in transformers.
  if (!templates.empty()) config.chat_templates = std::move(templates);
  if (!found) return absl::NotFoundError(absl::StrCat(dir, ": no tokenizer.json"));
  return absl::OkStatus();
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& dir) {
  auto impl = std::make_unique<Impl>();
  MR_RETURN_IF_ERROR(impl->ReadFiles(dir));
  impl->Index();
  auto tokenizer = std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
  const auto& special = tokenizer->impl_->config.special_tokens;
  if (const auto eos = special.find("eos_token"); eos != special.end() && !eos->second.empty()) {
    tokenizer->impl_->eos_id = tokenizer->TokenId(eos->second);
    if (tokenizer->impl_->eos_id < 0) {
      return absl::InvalidArgumentError(absl::StrCat(JoinPath(dir, "tokenizer_config.json"),
                                                     ": eos_token \"", eos->second,
                                                     "\" is not a token"));
    }
  }
  return tokenizer;
}

std::unique_ptr<Tokenizer> Tokenizer::Bytes() {
  auto impl = std::make_unique<Impl>();
  impl->files = {{"tokenizer.json", ByteTokenizerJson()},
                 {"tokenizer_config.json", ByteTokenizerConfigJson()}};
  impl->parts = ParseTokenizerJson(impl->files[0].second, "byte tokenizer").value();
  impl->config = ParseTokenizerConfig(impl->files[1].second, "byte tokenizer").value();
  impl->Index();
  impl->eos_id = impl->added_ids.at(impl->config.special_tokens.at("eos_token"));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

std::vector<int32_t> Tokenizer::Encode(absl::string_view text, EncodeOptions options) const {
  std::string replaced;
  if (!IsValidUtf8(text)) {
    replaced = ReplaceInvalidUtf8(text);
    text = replaced;
  }
  std::vector<int32_t> ids;
  if (options.add_special) ids = impl_->parts.prefix;
  Segment whole{text, {}, {}};
  if (options.parse_special) whole.special_in.push_back({0, text.size()});
  impl_->Encode(whole, {&ids, nullptr});
  if (options.add_special) {
    ids.insert(ids.end(), impl_->parts.suffix.begin(), impl_->parts.suffix.end());
  }
  return ids;
}

std::vector<int32_t> Tokenizer::EncodeMarked(const MarkedText& text,
                                             std::vector<uint8_t>* marks) const {
  Segment whole{text.text, {}, {}};
  whole.special_in.assign(text.special_in.begin(), text.special_in.end());
  whole.marked.assign(text.marked.begin(), text.marked.end());
  std::vector<int32_t> ids;
  marks->clear();
  impl_->Encode(whole, {&ids, marks});
  return ids;
}

std::string Tokenizer::Decode(absl::Span<const int32_t> ids, bool keep_special) const {
  const bool bytes_only = impl_->parts.decoder.byte_level();
  std::string bytes;
  std::vector<std::string> texts;
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || (!keep_special && IsSpecial(id))) continue;
    if (bytes_only) {
      bytes += impl_->tokens[id].bytes;
    } else if (!impl_->tokens[id].text.empty()) {
      texts.push_back(impl_->tokens[id].text);
    }
  }
  return bytes_only ? ReplaceInvalidUtf8(bytes) : impl_->parts.decoder.Decode(std::move(texts));
}

std::string Tokenizer::TokenBytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return "";
  return impl_->tokens[id].bytes;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->tokens.size()); }

int32_t Tokenizer::TokenId(absl::string_view token) const {
  const auto added = impl_->added_ids.find(std::string(token));
  return added != impl_->added_ids.end() ? added->second : impl_->parts.bpe.TokenId(token);
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->tokens[id].special;
}

int32_t Tokenizer::eos_id() const { return impl_->eos_id; }

const TokenizerConfig& Tokenizer::config() const { return impl_->config; }

absl::StatusOr<std::shared_ptr<const jinja::Template>> Tokenizer::ChatTemplate(
    const std::string& name) const {
  const auto it = impl_->chat_templates.find(name);
  if (it != impl_->chat_templates.end()) return it->second;
  std::vector<std::string> names;
  for (const auto& [known, chat] : impl_->chat_templates) names.push_back(known);
  return absl::FailedPreconditionError(
      names.empty() ? "the model has no chat template (in tokenizer_config.json or "
                      "chat_template.jinja)"
                    : absl::StrCat("the model has no chat template \"", name, "\" (it has ",
                                   absl::StrJoin(names, ", "), ")"));
}

absl::Status Tokenizer::CheckChatFormat() const { return ChatTemplate("default").status(); }

absl::Status Tokenizer::Save(const std::string& dir) const {
  MR_RETURN_IF_ERROR(MakeDirectories(dir));
  for (const auto& [name, text] : impl_->files) {
    if (absl::StartsWith(name, kTemplateFolder)) {
      MR_RETURN_IF_ERROR(MakeDirectories(JoinPath(dir, kTemplateFolder)));
    }
    MR_RETURN_IF_ERROR(WriteFileAtomically(JoinPath(dir, name), text));
  }
  return absl::OkStatus();
}

}  // namespace millrace
