#include "model/token_decoder.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "model/bpe.h"
#include "model/byte_level.h"

namespace millrace {
namespace {

constexpr absl::string_view kReplacement = "\xef\xbf\xbd";

bool IsValidUtf8(absl::string_view bytes) {
  while (!bytes.empty()) {
    const int length = Utf8CharacterLength(bytes);
    if (length == 0) return false;
    bytes.remove_prefix(length);
  }
  return true;
}

// A run of byte tokens is its text; when it is not UTF-8, each byte is a replacement character.
std::vector<std::string> JoinBytes(const std::vector<std::string>& tokens) {
  std::vector<std::string> out;
  std::string run;
  const auto flush = [&] {
    if (run.empty()) return;
    if (IsValidUtf8(run)) {
      out.push_back(run);
    } else {
      out.insert(out.end(), run.size(), std::string(kReplacement));
    }
    run.clear();
  };
  for (const std::string& token : tokens) {
    if (const int byte = Bpe::ByteOfFallback(token); byte >= 0) {
      run.push_back(static_cast<char>(byte));
    } else {
      flush();
      out.push_back(token);
    }
  }
  flush();
  return out;
}

std::string Stripped(const std::string& token, const TokenDecoder::Step& step) {
  absl::string_view text = token;
  for (size_t i = 0; i < step.start && absl::StartsWith(text, step.from); ++i) {
    text.remove_prefix(step.from.size());
  }
  for (size_t i = 0; i < step.stop && absl::EndsWith(text, step.from); ++i) {
    text.remove_suffix(step.from.size());
  }
  return std::string(text);
}

}  // namespace

std::string TokenDecoder::Decode(std::vector<std::string> tokens) const {
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Kind::kByteLevel: {
        std::string bytes;
        for (const std::string& token : tokens) bytes += BytesOfTokenText(token);
        tokens = {ReplaceInvalidUtf8(bytes)};
        break;
      }
      case Kind::kReplace:
        for (std::string& token : tokens) {
          token = absl::StrReplaceAll(token, {{step.from, step.to}});
        }
        break;
      case Kind::kByteFallback:
        tokens = JoinBytes(tokens);
        break;
      case Kind::kFuse:
        tokens = {absl::StrJoin(tokens, "")};
        break;
      case Kind::kStrip:
        for (std::string& token : tokens) token = Stripped(token, step);
        break;
      case Kind::kMetaspace:
        for (size_t i = 0; i < tokens.size(); ++i) {
          const char* to = i == 0 && step.drop_first ? "" : " ";
          tokens[i] = absl::StrReplaceAll(tokens[i], {{step.from, to}});
        }
        break;
    }
  }
  return absl::StrJoin(tokens, "");
}

std::string TokenDecoder::BytesOf(const std::string& token) const {
  std::string text = token;
  for (const Step& step : steps_) {
    if (step.kind == Kind::kByteLevel) text = BytesOfTokenText(text);
    if (step.kind == Kind::kReplace) text = absl::StrReplaceAll(text, {{step.from, step.to}});
    if (step.kind == Kind::kMetaspace) text = absl::StrReplaceAll(text, {{step.from, " "}});
    if (step.kind == Kind::kByteFallback) {
      if (const int byte = Bpe::ByteOfFallback(text); byte >= 0) {
        text.assign(1, static_cast<char>(byte));
      }
    }
  }
  return text;
}

}  // namespace millrace
