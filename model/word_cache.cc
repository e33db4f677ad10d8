#include "model/word_cache.h"

#include <algorithm>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace millrace {

WordCache::WordCache() : slots_(new std::atomic<const Entry*>[kSlots]) {
  for (size_t i = 0; i < kSlots; ++i) slots_[i].store(nullptr, std::memory_order_relaxed);
}

WordCache::~WordCache() {
  for (size_t i = 0; i < kSlots; ++i) delete slots_[i].load(std::memory_order_relaxed);
}

uint64_t WordCache::Hash(absl::string_view word) { return XXH3_64bits(word.data(), word.size()); }

bool WordCache::Find(uint64_t hash, absl::string_view word, std::vector<int32_t>* ids) const {
  for (size_t i = 0; i < kProbes; ++i) {
    const Entry* entry = slots_[(hash + i) % kSlots].load(std::memory_order_acquire);
    if (entry == nullptr) return false;
    if (entry->hash != hash || entry->length != word.size() ||
        std::memcmp(entry->word, word.data(), word.size()) != 0) {
      continue;
    }
    ids->insert(ids->end(), entry->ids, entry->ids + entry->count);
    return true;
  }
  return false;
}

void WordCache::Insert(uint64_t hash, absl::string_view word, absl::Span<const int32_t> ids) {
  if (word.size() > kLongestWord || ids.size() > kMostIds) return;
  std::unique_ptr<Entry> entry;
  for (size_t i = 0; i < kProbes; ++i) {
    std::atomic<const Entry*>& slot = slots_[(hash + i) % kSlots];
    if (slot.load(std::memory_order_relaxed) != nullptr) continue;
    if (entry == nullptr) {
      entry = std::make_unique<Entry>();
      entry->hash = hash;
      entry->length = static_cast<uint8_t>(word.size());
      entry->count = static_cast<uint8_t>(ids.size());
      std::copy(word.begin(), word.end(), entry->word);
      std::copy(ids.begin(), ids.end(), entry->ids);
    }
    const Entry* expected = nullptr;
    if (slot.compare_exchange_strong(expected, entry.get(), std::memory_order_release,
                                     std::memory_order_relaxed)) {
      entry.release();
      return;
    }
  }
}

}  // namespace millrace
