#include "model/unicode_classes.h"

#include <utf8proc.h>

#include <algorithm>
#include <map>

namespace millrace {
namespace {

struct Range {
  uint32_t first, last;
};

// Letters and numbers of Unicode 15.1 and 16 (numbers: 17), which utf8proc 2.8 (Unicode 15) lacks.
constexpr Range kNewLetters[] = {
    {0x1c89, 0x1c8a},   {0xa7cb, 0xa7cd},   {0xa7da, 0xa7dc},   {0x105c0, 0x105f3},
    {0x10d4a, 0x10d65}, {0x10d6f, 0x10d85}, {0x10ec2, 0x10ec4}, {0x11380, 0x11389},
    {0x1138b, 0x1138b}, {0x1138e, 0x1138e}, {0x11390, 0x113b5}, {0x113b7, 0x113b7},
    {0x113d1, 0x113d1}, {0x113d3, 0x113d3}, {0x11bc0, 0x11be0}, {0x13460, 0x143fa},
    {0x16100, 0x1611d}, {0x16d40, 0x16d6c}, {0x18cff, 0x18cff}, {0x1e5d0, 0x1e5ed},
    {0x1e5f0, 0x1e5f0}, {0x2ebf0, 0x2ee5d}};
constexpr Range kNewNumbers[] = {{0x10d40, 0x10d49}, {0x116d0, 0x116e3}, {0x11bf0, 0x11bf9},
                                 {0x16130, 0x16139}, {0x16d70, 0x16d79}, {0x1ccf0, 0x1ccf9},
                                 {0x1e5f1, 0x1e5fa}};

bool IsWhiteSpace(uint32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

template <size_t n>
bool Within(const Range (&ranges)[n], uint32_t c) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [c](const Range& r) { return c >= r.first && c <= r.last; });
}

CharClass Classify(uint32_t code) {
  if (IsWhiteSpace(code)) return CharClass::kSpace;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass::kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::kNumber;
    default:
      if (Within(kNewLetters, code)) return CharClass::kLetter;
      return Within(kNewNumbers, code) ? CharClass::kNumber : CharClass::kOther;
  }
}

}  // namespace

const CharClasses& CharClasses::Get() {
  static const CharClasses* const classes = new CharClasses();
  return *classes;
}

CharClasses::CharClasses() {
  std::map<std::vector<CharClass>, uint16_t> known;
  std::vector<CharClass> page(256);
  for (uint32_t high = 0; high < page_of_.size(); ++high) {
    for (uint32_t low = 0; low < 256; ++low) page[low] = Classify(high << 8 | low);
    const auto [it, added] = known.emplace(page, static_cast<uint16_t>(known.size()));
    if (added) pages_.insert(pages_.end(), page.begin(), page.end());
    page_of_[high] = it->second;
  }
  std::copy_n(pages_.begin() + page_of_[0] * 256, 128, ascii_.begin());
}

}  // namespace millrace
