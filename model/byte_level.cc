#include "model/byte_level.h"

#include <algorithm>
#include <array>
#include <vector>

namespace millrace {
namespace {

struct Alphabet {
  std::array<std::string, 256> characters;
  std::vector<int> byte_of;  // by code point; -1 = none

  Alphabet() : byte_of(0x100 + 68, -1) {
    uint32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      const uint32_t code = printable ? byte : next++;
      AppendUtf8(code, &characters[byte]);
      byte_of[code] = byte;
    }
  }
};

const Alphabet& GetAlphabet() {
  static const Alphabet* const kAlphabet = new Alphabet();
  return *kAlphabet;
}

}  // namespace

void AppendUtf8(uint32_t code, std::string* out) {
  const auto tail = [&](int shift) {
    out->push_back(static_cast<char>(0x80 | (code >> shift & 63)));
  };
  if (code < 0x80) {
    out->push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out->push_back(static_cast<char>(0xc0 | code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    out->push_back(static_cast<char>(0xe0 | code >> 12));
    tail(6);
    tail(0);
  } else {
    out->push_back(static_cast<char>(0xf0 | code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

const std::string& ByteCharacter(uint8_t byte) { return GetAlphabet().characters[byte]; }

int Utf8CharacterLength(absl::string_view bytes, int* bad_length) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  int length = 0;
  uint8_t low = 0x80, high = 0xbf;  // range of the second byte (Unicode table 3-7)
  const uint8_t lead = bytes.empty() ? 0xff : at(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) {
    length = 2;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3;
    if (lead == 0xe0) low = 0xa0;
    if (lead == 0xed) high = 0x9f;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4;
    if (lead == 0xf0) low = 0x90;
    if (lead == 0xf4) high = 0x8f;
  }
  int good = 1;
  while (good < length && static_cast<size_t>(good) < bytes.size() && at(good) >= low &&
         at(good) <= high) {
    low = 0x80;
    high = 0xbf;
    ++good;
  }
  if (length != 0 && good == length) return length;
  if (bad_length != nullptr) *bad_length = good;
  return 0;
}

uint32_t CodePoint(absl::string_view bytes, int length) {
  const uint8_t lead = static_cast<uint8_t>(bytes[0]);
  if (length == 1) return lead;
  uint32_t code = lead & (0x7f >> length);
  for (int i = 1; i < length; ++i) code = code << 6 | (static_cast<uint8_t>(bytes[i]) & 63);
  return code;
}

std::string BytesOfTokenText(absl::string_view text) {
  const Alphabet& alphabet = GetAlphabet();
  std::string bytes;
  for (absl::string_view rest = text; !rest.empty();) {
    const int length = Utf8CharacterLength(rest);
    const uint32_t code = length == 0 ? 0xffffffff : CodePoint(rest, length);
    if (code >= alphabet.byte_of.size() || alphabet.byte_of[code] < 0) return std::string(text);
    bytes.push_back(static_cast<char>(alphabet.byte_of[code]));
    rest.remove_prefix(length);
  }
  return bytes;
}

std::string ReplaceInvalidUtf8(absl::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    int bad = 0;
    const int length = Utf8CharacterLength(bytes, &bad);
    if (length > 0) {
      text.append(bytes.data(), length);
    } else {
      AppendUtf8(0xfffd, &text);
    }
    bytes.remove_prefix(length > 0 ? length : bad);
  }
  return text;
}

}  // namespace millrace
