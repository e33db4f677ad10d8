#include "model/tokenizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "model/byte_level.h"
#include "model/chat_format.h"
#include "model/tokenizer_json.h"

namespace millrace {
namespace {

// Kept beside tokenizer.json when a tokenizer is saved again.
constexpr const char* kFiles[] = {"tokenizer.json", "tokenizer_config.json",
                                  "special_tokens_map.json", "chat_template.jinja"};

std::string Nfc(const std::string& text) {
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (length < 0) return text;
  std::string result(reinterpret_cast<const char*>(mapped), length);
  std::free(mapped);
  return result;
}

}  // namespace

struct Tokenizer::Impl {
  struct Token {
    std::string bytes;
    std::string text;  // of an added token
    bool known = false;
    bool special = false;
  };

  TokenizerParts parts;
  std::vector<Token> tokens;                           // by id
  std::unordered_map<std::string, int32_t> added_ids;  // by text
  // Added tokens by their first byte, longest first (the leftmost longest one wins).
  std::array<std::vector<const AddedToken*>, 256> added_by_byte;
  TokenizerConfig config;
  int32_t eos_id = -1;
  std::string default_system_prompt;
  std::vector<std::pair<std::string, std::string>> files;  // name, contents

  void Index();
  void EncodePlain(absl::string_view text, std::vector<int32_t>* ids) const;
  const AddedToken* AddedAt(absl::string_view text, bool parse_special) const;
};

void Tokenizer::Impl::Index() {
  const auto place = [&](int32_t id) -> Token& {
    if (static_cast<size_t>(id) >= tokens.size()) tokens.resize(id + 1);
    tokens[id].known = true;
    return tokens[id];
  };
  for (const auto& [text, id] : parts.bpe.vocab()) place(id).bytes = BytesOfTokenText(text);
  for (const AddedToken& added : parts.added) {
    Token& token = place(added.id);
    token.bytes = BytesOfTokenText(added.text);
    token.text = added.text;
    token.special = added.special;
    added_ids[added.text] = added.id;
    added_by_byte[static_cast<uint8_t>(added.text[0])].push_back(&added);
  }
  for (auto& list : added_by_byte) {
    std::stable_sort(list.begin(), list.end(), [](const AddedToken* a, const AddedToken* b) {
      return a->text.size() > b->text.size();
    });
  }
}

const AddedToken* Tokenizer::Impl::AddedAt(absl::string_view text, bool parse_special) const {
  for (const AddedToken* token : added_by_byte[static_cast<uint8_t>(text[0])]) {
    if ((parse_special || !token->special) && absl::StartsWith(text, token->text)) return token;
  }
  return nullptr;
}

void Tokenizer::Impl::EncodePlain(absl::string_view text, std::vector<int32_t>* ids) const {
  std::string normal;
  if (parts.nfc) {
    normal = Nfc(std::string(text));
    text = normal;
  }
  for (absl::string_view word : parts.pretokenizer.Split(text)) parts.bpe.Encode(word, ids);
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& dir) {
  auto impl = std::make_unique<Impl>();
  for (const char* name : kFiles) {
    const std::string path = JoinPath(dir, name);
    if (!FileExists(path)) continue;
    MR_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
    impl->files.emplace_back(name, std::move(text));
  }
  bool found = false;
  std::optional<std::string> template_file;
  for (const auto& [name, text] : impl->files) {
    const std::string path = JoinPath(dir, name);
    if (name == "tokenizer.json") {
      MR_ASSIGN_OR_RETURN(impl->parts, ParseTokenizerJson(text, path));
      found = true;
    } else if (name == "tokenizer_config.json") {
      MR_ASSIGN_OR_RETURN(impl->config, ParseTokenizerConfig(text, path));
    } else if (name == "chat_template.jinja") {
      template_file = text;
    }
  }
  if (!found) return absl::NotFoundError(absl::StrCat(dir, ": no tokenizer.json"));
  if (template_file) impl->config.chat_template = template_file;
  impl->Index();
  auto tokenizer = std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
  if (const std::string& eos = tokenizer->impl_->config.eos_token; !eos.empty()) {
    tokenizer->impl_->eos_id = tokenizer->TokenId(eos);
    if (tokenizer->impl_->eos_id < 0) {
      return absl::InvalidArgumentError(absl::StrCat(JoinPath(dir, "tokenizer_config.json"),
                                                     ": eos_token \"", eos, "\" is not a token"));
    }
  }
  tokenizer->impl_->default_system_prompt =
      DefaultSystemPrompt(tokenizer->impl_->config.chat_template.value_or(""));
  return tokenizer;
}

std::unique_ptr<Tokenizer> Tokenizer::Bytes() {
  auto impl = std::make_unique<Impl>();
  impl->files = {{"tokenizer.json", ByteTokenizerJson()},
                 {"tokenizer_config.json", ByteTokenizerConfigJson()}};
  impl->parts = ParseTokenizerJson(impl->files[0].second, "byte tokenizer").value();
  impl->config = ParseTokenizerConfig(impl->files[1].second, "byte tokenizer").value();
  impl->Index();
  impl->eos_id = impl->added_ids.at(impl->config.eos_token);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

std::vector<int32_t> Tokenizer::Encode(absl::string_view text, EncodeOptions options) const {
  const std::string valid = ReplaceInvalidUtf8(text);
  const absl::string_view all = valid;
  std::vector<int32_t> ids;
  size_t begin = 0;
  for (size_t at = 0; at < all.size();) {
    const AddedToken* token = impl_->AddedAt(all.substr(at), options.parse_special);
    if (token == nullptr) {
      ++at;
      continue;
    }
    impl_->EncodePlain(all.substr(begin, at - begin), &ids);
    ids.push_back(token->id);
    at += token->text.size();
    begin = at;
  }
  impl_->EncodePlain(all.substr(begin), &ids);
  return ids;
}

std::string Tokenizer::Decode(absl::Span<const int32_t> ids, bool keep_special) const {
  std::string bytes;
  for (int32_t id : ids) {
    if (keep_special || !IsSpecial(id)) bytes += TokenBytes(id);
  }
  return ReplaceInvalidUtf8(bytes);
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

const std::string& Tokenizer::default_system_prompt() const { return impl_->default_system_prompt; }

absl::Status Tokenizer::CheckChatFormat() const {
  if (impl_->config.chat_template &&
      !absl::StrContains(*impl_->config.chat_template, "<|im_start|>")) {
    return absl::UnimplementedError(
        "the tokenizer's chat_template is not ChatML (no <|im_start|>)");
  }
  for (const char* name : {"<|im_start|>", "<|im_end|>"}) {
    if (TokenId(name) < 0) {
      return absl::UnimplementedError(absl::StrCat("the vocabulary has no ", name,
                                                   " token, which the ChatML chat format needs"));
    }
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Save(const std::string& dir) const {
  MR_RETURN_IF_ERROR(MakeDirectories(dir));
  for (const auto& [name, text] : impl_->files) {
    MR_RETURN_IF_ERROR(WriteFileAtomically(JoinPath(dir, name), text));
  }
  return absl::OkStatus();
}

}  // namespace millrace
