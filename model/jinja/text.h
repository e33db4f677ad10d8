// A string whose bytes know where they come from: the template, a message, the tools. Every
// operation of the interpreter keeps that, so that after rendering, control tokens are recognised
// only in what the template itself wrote, and the assistant's part is known without searching.
#ifndef MILLRACE_MODEL_JINJA_TEXT_H_
#define MILLRACE_MODEL_JINJA_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace millrace::jinja {

// Origins of bytes. The caller numbers the sources of data from 1 up.
inline constexpr int32_t kTemplateOrigin = 0;

struct Tag {
  int32_t origin = kTemplateOrigin;
  bool generated = false;  // inside {% generation %}
  bool operator==(const Tag& other) const {
    return origin == other.origin && generated == other.generated;
  }
};

// Well-formed UTF-8. Positions are bytes; they must lie between characters.
class Text {
 public:
  struct Run {
    size_t end;  // begins where the run before it ends
    Tag tag;
  };

  Text() = default;
  Text(absl::string_view bytes, Tag tag) { Append(bytes, tag); }
  Text(absl::string_view bytes, int32_t origin) { Append(bytes, Tag{origin, false}); }

  const std::string& bytes() const { return bytes_; }
  const std::vector<Run>& runs() const { return runs_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  void Append(absl::string_view bytes, Tag tag);
  void Append(const Text& text);
  Text Sub(size_t begin, size_t end) const;
  Tag TagAt(size_t position) const;
  // All of it inside {% generation %}.
  void MarkGenerated();
  // The same tags over other bytes: `map` turns one character into any bytes.
  template <typename Map>
  Text MapCharacters(Map map) const;

 private:
  std::string bytes_;
  std::vector<Run> runs_;
};

// Length in bytes of the character at `at`.
size_t CharacterLength(absl::string_view text, size_t at);
// Characters in the text.
size_t CharacterCount(absl::string_view text);
// Byte position of character `n`; the size when there are not so many.
size_t CharacterPosition(absl::string_view text, size_t n);
// White space as str.strip() of Python knows it.
bool IsPythonSpace(uint32_t code);
uint32_t CodeAt(absl::string_view text, size_t at);

template <typename Map>
Text Text::MapCharacters(Map map) const {
  Text out;
  for (size_t at = 0; at < bytes_.size();) {
    const size_t length = CharacterLength(bytes_, at);
    out.Append(map(absl::string_view(bytes_).substr(at, length)), TagAt(at));
    at += length;
  }
  return out;
}

}  // namespace millrace::jinja

#endif  // MILLRACE_MODEL_JINJA_TEXT_H_
