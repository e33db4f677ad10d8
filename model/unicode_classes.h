// Classes of code points as tokenizers need them, Unicode 16: what the regular expressions of
// pre-tokenizers mean by \p{L}, \p{N} and \s. Pure functions, tables built on first use.
#ifndef MILLRACE_MODEL_UNICODE_CLASSES_H_
#define MILLRACE_MODEL_UNICODE_CLASSES_H_

#include <array>
#include <cstdint>
#include <vector>

namespace millrace {

enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };

// Two-stage table over all code points.
class CharClasses {
 public:
  static const CharClasses& Get();
  CharClass Of(uint32_t code) const {
    if (code < 0x80) return ascii_[code];
    if (code > 0x10ffff) return CharClass::kOther;
    return pages_[page_of_[code >> 8] * 256 + (code & 0xff)];
  }
  bool IsSpace(uint32_t code) const { return Of(code) == CharClass::kSpace; }

 private:
  CharClasses();
  std::array<CharClass, 128> ascii_;
  std::array<uint16_t, 0x1100> page_of_;
  std::vector<CharClass> pages_;
};

}  // namespace millrace

#endif  // MILLRACE_MODEL_UNICODE_CLASSES_H_
