// The byte-level alphabet of GPT-2 (each byte as one printable character) and lossy UTF-8. Pure
// functions.
#ifndef MILLRACE_MODEL_BYTE_LEVEL_H_
#define MILLRACE_MODEL_BYTE_LEVEL_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace millrace {

// UTF-8 of the character that stands for `byte`: printable Latin-1 bytes stand for themselves, the
// other 68 for U+0100 and up in byte order.
const std::string& ByteCharacter(uint8_t byte);
// Bytes that a token's text stands for. A text with any character outside the alphabet (an added
// token with a space, say) stands for its own UTF-8.
std::string BytesOfTokenText(absl::string_view text);
// `bytes` with every maximal ill-formed part replaced by U+FFFD (Unicode 3.9, "substitution of
// maximal subparts").
std::string ReplaceInvalidUtf8(absl::string_view bytes);
// Length in bytes of the well-formed UTF-8 character at the front of `bytes`; 0 when ill-formed.
// *bad_length (may be null) gets the length of the maximal ill-formed part then.
int Utf8CharacterLength(absl::string_view bytes, int* bad_length = nullptr);
// Code point of the well-formed character of `length` bytes at the front.
uint32_t CodePoint(absl::string_view bytes, int length);
void AppendUtf8(uint32_t code_point, std::string* out);

}  // namespace millrace

#endif  // MILLRACE_MODEL_BYTE_LEVEL_H_
