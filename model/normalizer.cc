#include "model/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "model/byte_level.h"

namespace millrace {
namespace {

struct Range {
  uint32_t first, last;
};

// Marks that Unicode gave a combining class to (and one composition) after version 10, which the
// library that tokenizers were trained with knows. They stay where they are, as there.
constexpr Range kLaterMarks[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xc3c, 0xc3c},     {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x1715, 0x1715},
    {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0x10d24, 0x10d27},
    {0x10eab, 0x10eac}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
    {0x11930, 0x11930}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
    {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42},
    {0x11d44, 0x11d45}, {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1},
    {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef},
    {0x1e4ec, 0x1e4ef}};

// The same of compatibility decompositions.
constexpr Range kLaterCompatibility[] = {
    {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},   {0xab69, 0xab69},
    {0x10781, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba},
    {0x1e030, 0x1e06d}, {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}};

template <size_t n>
bool Within(const Range (&ranges)[n], uint32_t code) {
  return code >= ranges[0].first &&
         std::any_of(std::begin(ranges), std::end(ranges),
                     [code](const Range& r) { return code >= r.first && code <= r.last; });
}

bool IsLater(uint32_t code, int options) {
  return Within(kLaterMarks, code) ||
         ((options & UTF8PROC_COMPAT) != 0 && Within(kLaterCompatibility, code));
}

void AppendMapped(absl::string_view text, int options, std::string* out) {
  if (text.empty()) return;
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | options));
  if (length < 0) {
    out->append(text.data(), text.size());
    return;
  }
  out->append(reinterpret_cast<const char*>(mapped), length);
  std::free(mapped);
}

int UnicodeOptions(Normalizer::Kind form) {
  switch (form) {
    case Normalizer::Kind::kNfc:
      return UTF8PROC_COMPOSE;
    case Normalizer::Kind::kNfd:
      return UTF8PROC_DECOMPOSE;
    case Normalizer::Kind::kNfkc:
      return UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
    default:
      return UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
  }
}

// Whether normalisation leaves the text alone for sure. Below U+0300 nothing combines.
bool SurelyNormal(absl::string_view text, Normalizer::Kind form) {
  if (form != Normalizer::Kind::kNfc) {
    return std::all_of(text.begin(), text.end(),
                       [](char c) { return static_cast<int8_t>(c) >= 0; });
  }
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<uint8_t>(c) < 0xcc; });
}

std::string Unicode(absl::string_view text, Normalizer::Kind form) {
  const int options = UnicodeOptions(form);
  std::string out;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const int length = std::max(1, Utf8CharacterLength(text.substr(at)));
    if (length > 1 && IsLater(CodePoint(text.substr(at), length), options)) {
      AppendMapped(text.substr(begin, at - begin), options, &out);
      out.append(text.data() + at, length);
      begin = at + length;
    }
    at += length;
  }
  AppendMapped(text.substr(begin), options, &out);
  return out;
}

std::string Replaced(absl::string_view text, const std::string& from, const std::string& to) {
  std::string out;
  out.reserve(text.size());
  size_t begin = 0;
  for (size_t at; (at = text.find(from, begin)) != absl::string_view::npos;) {
    out.append(text.data() + begin, at - begin);
    out += to;
    begin = at + from.size();
  }
  out.append(text.data() + begin, text.size() - begin);
  return out;
}

}  // namespace

void Normalizer::AddUnicode(Kind form) { steps_.push_back({form, "", ""}); }
void Normalizer::AddPrepend(std::string prefix) {
  steps_.push_back({Kind::kPrepend, "", std::move(prefix)});
}
void Normalizer::AddReplace(std::string from, std::string to) {
  steps_.push_back({Kind::kReplace, std::move(from), std::move(to)});
}

absl::string_view Normalizer::Apply(absl::string_view text, std::string* storage) const {
  for (const Step& step : steps_) {
    std::string next;
    if (step.kind == Kind::kPrepend) {
      if (text.empty()) continue;
      next = step.to;
      next.append(text.data(), text.size());
    } else if (step.kind == Kind::kReplace) {
      if (text.find(step.from) == absl::string_view::npos) continue;
      next = Replaced(text, step.from, step.to);
    } else {
      if (SurelyNormal(text, step.kind)) continue;
      next = Unicode(text, step.kind);
    }
    *storage = std::move(next);
    text = *storage;
  }
  return text;
}

}  // namespace millrace
