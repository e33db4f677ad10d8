#include "model/bpe.h"

#include <limits>
#include <queue>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "model/byte_level.h"
#include "model/word_cache.h"

namespace millrace {
namespace {

constexpr size_t kShortWord = 48;  // symbols; quadratic merging is faster up to here
constexpr uint64_t kFree = ~uint64_t{0};

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

size_t SlotOf(uint64_t key, size_t slots) {
  return (key * 0x9e3779b97f4a7c15u >> 32) & (slots - 1);
}

}  // namespace

Bpe::Bpe() = default;
Bpe::Bpe(Bpe&&) noexcept = default;
Bpe& Bpe::operator=(Bpe&&) noexcept = default;
Bpe::~Bpe() = default;

absl::StatusOr<Bpe> Bpe::Create(Spec spec) {
  Bpe bpe;
  bpe.vocab_ = std::move(spec.vocab);
  bpe.byte_level_ = spec.byte_level;
  bpe.fuse_unk_ = spec.fuse_unk;
  bpe.byte_fallback_ = spec.byte_fallback;
  bpe.unk_id_ = spec.unk_id;
  bpe.cache_ = std::make_unique<WordCache>();
  for (int byte = 0; byte < 256; ++byte) {
    if (spec.byte_level) {
      const int32_t id = bpe.TokenId(ByteCharacter(static_cast<uint8_t>(byte)));
      bpe.byte_ids_[byte] = id >= 0 ? id : spec.unk_id;
    } else {
      bpe.byte_ids_[byte] = bpe.TokenId(absl::StrFormat("<0x%02X>", byte));
    }
  }
  MR_RETURN_IF_ERROR(bpe.AddMerges(spec));
  if (spec.ignore_merges) {
    for (const auto& [text, id] : bpe.vocab_) {
      bpe.whole_words_[spec.byte_level ? BytesOfTokenText(text) : text] = id;
    }
  }
  return bpe;
}

absl::Status Bpe::AddMerges(const Spec& spec) {
  size_t slots = 16;
  while (slots < spec.merges.size() * 2) slots *= 2;
  merges_.assign(slots, Slot{kFree, {}});
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto& [left, right] = spec.merges[rank];
    const int32_t a = TokenId(left), b = TokenId(right), ab = TokenId(absl::StrCat(left, right));
    if (a < 0 || b < 0 || ab < 0) {
      return absl::InvalidArgumentError(absl::StrCat("merge ", rank, " (\"", left, "\", \"", right,
                                                     "\") has a part or result that is not in the "
                                                     "vocabulary"));
    }
    if (left.empty() || right.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("merge ", rank, " (\"", left, "\", \"", right,
                       "\") has an empty part, so it merges to itself"));
    }
    const uint64_t key = PairKey(a, b);
    size_t slot = SlotOf(key, slots);
    while (merges_[slot].key != kFree && merges_[slot].key != key) slot = (slot + 1) & (slots - 1);
    merges_[slot] = {key, {static_cast<int32_t>(rank), ab}};
  }
  return absl::OkStatus();
}

int32_t Bpe::TokenId(absl::string_view text) const {
  const auto it = vocab_.find(text);
  return it == vocab_.end() ? -1 : it->second;
}

int Bpe::ByteOfFallback(absl::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  int byte = 0;
  for (char c : text.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    byte = byte * 16 + digit;
  }
  return byte;
}

inline const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right) const {
  const uint64_t key = PairKey(left, right);
  const size_t mask = merges_.size() - 1;
  for (size_t slot = SlotOf(key, merges_.size()); merges_[slot].key != kFree;
       slot = (slot + 1) & mask) {
    if (merges_[slot].key == key) return &merges_[slot].merge;
  }
  return nullptr;
}

void Bpe::Encode(absl::string_view word, std::vector<int32_t>* ids) const {
  if (word.size() > WordCache::kLongestWord) return EncodeUncached(word, ids);
  const uint64_t hash = WordCache::Hash(word);
  if (cache_->Find(hash, word, ids)) return;
  const size_t before = ids->size();
  EncodeUncached(word, ids);
  cache_->Insert(hash, word, absl::MakeSpan(*ids).subspan(before));
}

void Bpe::EncodeUncached(absl::string_view word, std::vector<int32_t>* ids) const {
  if (!whole_words_.empty()) {
    const auto it = whole_words_.find(word);
    if (it != whole_words_.end()) {
      ids->push_back(it->second);
      return;
    }
  }
  std::vector<int32_t> symbols;
  symbols.reserve(word.size());
  Symbols(word, &symbols);
  if (symbols.size() > kShortWord) {
    MergeLong(&symbols);
  } else if (symbols.size() > 1) {
    MergeShort(&symbols);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

// The tokens of single characters (or bytes) that merging starts from.
void Bpe::Symbols(absl::string_view word, std::vector<int32_t>* symbols) const {
  if (byte_level_) {
    for (char c : word) {
      const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
      if (id < 0) continue;
      const bool fused = fuse_unk_ && id == unk_id_ && !symbols->empty() && symbols->back() == id;
      if (!fused) symbols->push_back(id);
    }
    return;
  }
  bool last_unknown = false;
  while (!word.empty()) {
    const size_t length = std::max(1, Utf8CharacterLength(word));
    const absl::string_view character = word.substr(0, length);
    word.remove_prefix(length);
    if (const int32_t id = TokenId(character); id >= 0) {
      symbols->push_back(id);
      last_unknown = false;
      continue;
    }
    bool bytes = byte_fallback_;
    for (char c : character) bytes = bytes && byte_ids_[static_cast<uint8_t>(c)] >= 0;
    if (bytes) {
      for (char c : character) symbols->push_back(byte_ids_[static_cast<uint8_t>(c)]);
      last_unknown = false;
    } else if (unk_id_ >= 0 && !(fuse_unk_ && last_unknown)) {
      symbols->push_back(unk_id_);
      last_unknown = true;
    }
  }
}

void Bpe::MergeShort(std::vector<int32_t>* symbols) const {
  constexpr int32_t kNone = std::numeric_limits<int32_t>::max();
  int32_t ids[kShortWord];
  Merge next[kShortWord];  // of symbol i with i + 1
  size_t n = symbols->size();
  std::copy(symbols->begin(), symbols->end(), ids);
  const auto look = [&](size_t i) {
    const Merge* merge = i + 1 < n ? FindMerge(ids[i], ids[i + 1]) : nullptr;
    next[i] = merge != nullptr ? *merge : Merge{kNone, -1};
  };
  for (size_t i = 0; i < n; ++i) look(i);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (next[i].rank < next[best].rank) best = i;
    }
    if (next[best].rank == kNone) break;
    ids[best] = next[best].id;
    --n;
    for (size_t i = best + 1; i < n; ++i) {
      ids[i] = ids[i + 1];
      next[i] = next[i + 1];
    }
    look(best);
    if (best > 0) look(best - 1);
  }
  symbols->assign(ids, ids + n);
}

void Bpe::MergeLong(std::vector<int32_t>* symbols) const {
  // A linked list over the symbols and a heap of candidate pairs; a candidate whose symbols have
  // changed since it was pushed is stale and skipped.
  const int n = static_cast<int>(symbols->size());
  std::vector<int> next(n), previous(n);
  for (int i = 0; i < n; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;
  }
  using Candidate = std::tuple<int32_t, int, int32_t, int32_t>;  // rank, position, left, right
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto consider = [&](int left) {
    if (left < 0 || next[left] >= n) return;
    const int32_t a = (*symbols)[left], b = (*symbols)[next[left]];
    if (const Merge* merge = FindMerge(a, b)) heap.emplace(merge->rank, left, a, b);
  };
  for (int i = 0; i + 1 < n; ++i) consider(i);
  constexpr int32_t kGone = -1;
  while (!heap.empty()) {
    const auto [rank, left, a, b] = heap.top();
    heap.pop();
    const int right = (*symbols)[left] == a ? next[left] : n;
    if (right >= n || (*symbols)[right] != b) continue;
    (*symbols)[left] = FindMerge(a, b)->id;
    (*symbols)[right] = kGone;
    next[left] = next[right];
    if (next[right] < n) previous[next[right]] = left;
    consider(previous[left]);
    consider(left);
  }
  size_t kept = 0;
  for (int i = 0; i < n; i = next[i]) (*symbols)[kept++] = (*symbols)[i];
  symbols->resize(kept);
}

}  // namespace millrace
