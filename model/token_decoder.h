// From token texts back to text: the decoder of a tokenizer.json. Thread-safe (const) after
// creation.
#ifndef MILLRACE_MODEL_TOKEN_DECODER_H_
#define MILLRACE_MODEL_TOKEN_DECODER_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace millrace {

class TokenDecoder {
 public:
  enum class Kind { kByteLevel, kReplace, kByteFallback, kFuse, kStrip, kMetaspace };
  struct Step {
    Kind kind;
    std::string from, to;        // kReplace; kStrip: the character `from`; kMetaspace: `from`
    size_t start = 0, stop = 0;  // kStrip: how many at most, of each end
    bool drop_first = false;     // kMetaspace: the first token loses the character
  };
  void Add(Step step) { steps_.push_back(std::move(step)); }
  // Only byte-level: the text is the tokens' bytes, one after the other.
  bool byte_level() const { return steps_.size() == 1 && steps_[0].kind == Kind::kByteLevel; }
  std::string Decode(std::vector<std::string> tokens) const;
  // Bytes that one token stands for in the middle of a text.
  std::string BytesOf(const std::string& token) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace millrace

#endif  // MILLRACE_MODEL_TOKEN_DECODER_H_
