#include "model/jinja/text_functions.h"

#include <utf8proc.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/byte_level.h"

namespace millrace::jinja {
namespace {

std::string Utf8(uint32_t code) {
  std::string out;
  AppendUtf8(code, &out);
  return out;
}

std::string UpperCharacter(absl::string_view c) {
  if (c == "\u00df") return "SS";
  return Utf8(static_cast<uint32_t>(utf8proc_toupper(static_cast<int32_t>(CodeAt(c, 0)))));
}

std::string LowerCharacter(absl::string_view c) {
  return Utf8(static_cast<uint32_t>(utf8proc_tolower(static_cast<int32_t>(CodeAt(c, 0)))));
}

bool IsLetter(absl::string_view c) {
  const auto category = utf8proc_category(static_cast<int32_t>(CodeAt(c, 0)));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool InSet(absl::string_view text, size_t at, size_t length, const Text* set) {
  if (set == nullptr) return IsPythonSpace(CodeAt(text, at));
  return set->bytes().find(std::string(text.substr(at, length))) != std::string::npos;
}

size_t CharacterBefore(absl::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

Value Part(const Text& text, size_t begin, size_t end) { return Value::Of(text.Sub(begin, end)); }

size_t SkipSpaces(absl::string_view text, size_t at) {
  while (at < text.size() && IsPythonSpace(CodeAt(text, at))) at += CharacterLength(text, at);
  return at;
}

size_t SkipWord(absl::string_view text, size_t at) {
  while (at < text.size() && !IsPythonSpace(CodeAt(text, at))) at += CharacterLength(text, at);
  return at;
}

}  // namespace

Text Strip(const Text& text, Side side, const Text* set) {
  const absl::string_view bytes = text.bytes();
  size_t begin = 0, end = bytes.size();
  while (side != Side::kRight && begin < end) {
    const size_t length = CharacterLength(bytes, begin);
    if (!InSet(bytes, begin, length, set)) break;
    begin += length;
  }
  while (side != Side::kLeft && end > begin) {
    const size_t last = CharacterBefore(bytes, end);
    if (!InSet(bytes, last, end - last, set)) break;
    end = last;
  }
  return text.Sub(begin, end);
}

Text Upper(const Text& text) { return text.MapCharacters(UpperCharacter); }
Text Lower(const Text& text) { return text.MapCharacters(LowerCharacter); }

Text Capitalize(const Text& text) {
  bool first = true;
  return text.MapCharacters([&](absl::string_view c) {
    return std::exchange(first, false) ? UpperCharacter(c) : LowerCharacter(c);
  });
}

Text Title(const Text& text) {
  bool inside = false;
  return text.MapCharacters([&](absl::string_view c) {
    const bool was_inside = std::exchange(inside, IsLetter(c));
    return was_inside ? LowerCharacter(c) : UpperCharacter(c);
  });
}

Text TitleWords(const Text& text) {
  bool begins = true;
  return text.MapCharacters([&](absl::string_view c) {
    const bool parts =
        IsPythonSpace(CodeAt(c, 0)) || c == "-" || c == "(" || c == "{" || c == "[" || c == "<";
    const bool first = std::exchange(begins, parts);
    return first ? UpperCharacter(c) : LowerCharacter(c);
  });
}

absl::StatusOr<Text> Replace(Interpreter* in, const Text& text, const Text& from, const Text& to,
                             int64_t most) {
  const std::string& bytes = text.bytes();
  Text out;
  size_t begin = 0, search = 0;
  for (int64_t n = 0; most < 0 || n < most; ++n) {
    // An empty string is found before every character and at the end.
    const size_t at = bytes.find(from.bytes(), search);
    if (at == std::string::npos || search > bytes.size()) break;
    MR_RETURN_IF_ERROR(in->Step());
    MR_RETURN_IF_ERROR(in->Charge(at - begin + to.size()));
    out.Append(text.Sub(begin, at));
    out.Append(to);
    begin = at + from.size();
    search = from.empty() ? at + (at < bytes.size() ? CharacterLength(bytes, at) : 1) : begin;
    if (out.size() > in->most_bytes()) {
      return absl::ResourceExhaustedError("replacing makes a text that is too large");
    }
  }
  out.Append(text.Sub(begin, bytes.size()));
  return out;
}

absl::StatusOr<List> SplitText(Interpreter* in, const Text& text, const Text* separator,
                               int64_t most) {
  const std::string& bytes = text.bytes();
  List list;
  if (separator == nullptr) {
    for (size_t at = SkipSpaces(bytes, 0); at < bytes.size();) {
      MR_RETURN_IF_ERROR(in->Charge(sizeof(Value) + sizeof(Text)));
      const bool rest = most >= 0 && static_cast<int64_t>(list.items.size()) == most;
      const size_t end = rest ? Strip(text, Side::kRight, nullptr).size() : SkipWord(bytes, at);
      list.items.push_back(Part(text, at, end));
      at = SkipSpaces(bytes, end);
    }
    return list;
  }
  if (separator->empty()) return absl::InvalidArgumentError("split() at an empty string");
  size_t begin = 0;
  while (most < 0 || static_cast<int64_t>(list.items.size()) < most) {
    const size_t at = bytes.find(separator->bytes(), begin);
    if (at == std::string::npos) break;
    MR_RETURN_IF_ERROR(in->Charge(sizeof(Value) + sizeof(Text)));
    list.items.push_back(Part(text, begin, at));
    begin = at + separator->size();
  }
  list.items.push_back(Part(text, begin, bytes.size()));
  return list;
}

absl::StatusOr<List> SplitTextFromRight(Interpreter* in, const Text& text, const Text* separator,
                                        int64_t most) {
  if (most < 0) return SplitText(in, text, separator, most);
  if (separator == nullptr) {
    return absl::UnimplementedError("rsplit() at white space with a limit is not supported");
  }
  if (separator->empty()) return absl::InvalidArgumentError("rsplit() at an empty string");
  List list;
  size_t end = text.size();
  while (static_cast<int64_t>(list.items.size()) < most && end >= separator->size()) {
    const size_t at = text.bytes().rfind(separator->bytes(), end - separator->size());
    if (at == std::string::npos) break;
    MR_RETURN_IF_ERROR(in->Charge(sizeof(Value) + sizeof(Text)));
    list.items.push_back(Part(text, at + separator->size(), end));
    end = at;
  }
  list.items.push_back(Part(text, 0, end));
  std::reverse(list.items.begin(), list.items.end());
  return list;
}

List SplitLines(const Text& text, bool keep_ends) {
  const std::string& bytes = text.bytes();
  List list;
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const uint32_t code = CodeAt(bytes, at);
    size_t length = CharacterLength(bytes, at);
    const bool line_end = (code >= 0xa && code <= 0xd) || (code >= 0x1c && code <= 0x1e) ||
                          code == 0x85 || code == 0x2028 || code == 0x2029;
    if (line_end) {
      if (code == '\r' && at + 1 < bytes.size() && bytes[at + 1] == '\n') length = 2;
      list.items.push_back(Part(text, begin, keep_ends ? at + length : at));
      begin = at + length;
    }
    at += length;
  }
  if (begin < bytes.size()) list.items.push_back(Part(text, begin, bytes.size()));
  return list;
}

absl::StatusOr<Text> Join(Interpreter* in, const Text& separator, const std::vector<Value>& items) {
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    MR_RETURN_IF_ERROR(in->Step());
    if (i > 0) {
      MR_RETURN_IF_ERROR(in->Charge(separator.size()));
      out.Append(separator);
    }
    MR_ASSIGN_OR_RETURN(const Text text, in->ToText(items[i]));
    MR_RETURN_IF_ERROR(in->Charge(text.size()));
    out.Append(text);
    if (out.size() > in->most_bytes()) {
      return absl::ResourceExhaustedError("joining makes a text that is too large");
    }
  }
  return out;
}

}  // namespace millrace::jinja
