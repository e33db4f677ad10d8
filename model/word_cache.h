// Ids of words that were encoded before. Thread-safe, without a lock: an entry is published once
// and never changes or leaves, so a full cache stays as it is.
#ifndef MILLRACE_MODEL_WORD_CACHE_H_
#define MILLRACE_MODEL_WORD_CACHE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace millrace {

class WordCache {
 public:
  static constexpr size_t kLongestWord = 40;  // bytes; longer ones are not kept
  static constexpr size_t kMostIds = 8;       // words of more tokens are not kept
  WordCache();
  ~WordCache();
  WordCache(const WordCache&) = delete;
  WordCache& operator=(const WordCache&) = delete;

  static uint64_t Hash(absl::string_view word);
  // Appends the ids of `word`; false when it is not here.
  bool Find(uint64_t hash, absl::string_view word, std::vector<int32_t>* ids) const;
  void Insert(uint64_t hash, absl::string_view word, absl::Span<const int32_t> ids);

 private:
  static constexpr size_t kSlots = size_t{1} << 16;
  static constexpr size_t kProbes = 4;
  struct Entry {
    uint64_t hash;
    uint8_t length, count;
    char word[kLongestWord];
    int32_t ids[kMostIds];
  };
  const std::unique_ptr<std::atomic<const Entry*>[]> slots_;
};

}  // namespace millrace

#endif  // MILLRACE_MODEL_WORD_CACHE_H_
