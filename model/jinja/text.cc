#include "model/jinja/text.h"

#include <algorithm>

#include "model/byte_level.h"
#include "model/unicode_classes.h"

namespace millrace::jinja {

void Text::Append(absl::string_view bytes, Tag tag) {
  if (bytes.empty()) return;
  bytes_.append(bytes.data(), bytes.size());
  if (!runs_.empty() && runs_.back().tag == tag) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), tag});
  }
}

void Text::Append(const Text& text) {
  size_t begin = 0;
  for (const Run& run : text.runs_) {
    Append(absl::string_view(text.bytes_).substr(begin, run.end - begin), run.tag);
    begin = run.end;
  }
}

Text Text::Sub(size_t begin, size_t end) const {
  Text out;
  end = std::min(end, bytes_.size());
  auto run = std::upper_bound(runs_.begin(), runs_.end(), begin,
                              [](size_t at, const Run& r) { return at < r.end; });
  for (; begin < end; ++run) {
    const size_t to = std::min(end, run->end);
    out.Append(absl::string_view(bytes_).substr(begin, to - begin), run->tag);
    begin = to;
  }
  return out;
}

Tag Text::TagAt(size_t position) const {
  const auto it = std::upper_bound(runs_.begin(), runs_.end(), position,
                                   [](size_t at, const Run& run) { return at < run.end; });
  return it == runs_.end() ? Tag() : it->tag;
}

void Text::MarkGenerated() {
  for (Run& run : runs_) run.tag.generated = true;
}

size_t CharacterLength(absl::string_view text, size_t at) {
  return static_cast<size_t>(std::max(1, Utf8CharacterLength(text.substr(at))));
}

size_t CharacterCount(absl::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

size_t CharacterPosition(absl::string_view text, size_t n) {
  size_t at = 0;
  while (n > 0 && at < text.size()) {
    at += CharacterLength(text, at);
    --n;
  }
  return std::min(at, text.size());
}

bool IsPythonSpace(uint32_t code) {
  return (code >= 0x1c && code <= 0x1f) || CharClasses::Get().IsSpace(code);
}

uint32_t CodeAt(absl::string_view text, size_t at) {
  const int length = Utf8CharacterLength(text.substr(at));
  return length == 0 ? 0xfffd : CodePoint(text.substr(at), length);
}

}  // namespace millrace::jinja
