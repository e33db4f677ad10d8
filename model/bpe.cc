#include "model/bpe.h"

#include <queue>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "model/byte_level.h"

namespace millrace {

absl::StatusOr<Bpe> Bpe::Create(Spec spec) {
  Bpe bpe;
  bpe.vocab_ = std::move(spec.vocab);
  for (int byte = 0; byte < 256; ++byte) {
    const int32_t id = bpe.TokenId(ByteCharacter(static_cast<uint8_t>(byte)));
    bpe.byte_ids_[byte] = id >= 0 ? id : spec.unk_id;
  }
  bpe.merges_.reserve(spec.merges.size());
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto& [left, right] = spec.merges[rank];
    const int32_t a = bpe.TokenId(left), b = bpe.TokenId(right), ab = bpe.TokenId(left + right);
    if (a < 0 || b < 0 || ab < 0) {
      return absl::InvalidArgumentError(absl::StrCat("merge ", rank, " (\"", left, "\", \"", right,
                                                     "\") has a part or result that is not in the "
                                                     "vocabulary"));
    }
    bpe.merges_[PairKey(a, b)] = {static_cast<int32_t>(rank), ab};
  }
  if (spec.ignore_merges) {
    for (const auto& [text, id] : bpe.vocab_) bpe.whole_words_[BytesOfTokenText(text)] = id;
  }
  return bpe;
}

int32_t Bpe::TokenId(absl::string_view text) const {
  const auto it = vocab_.find(std::string(text));
  return it == vocab_.end() ? -1 : it->second;
}

void Bpe::Encode(absl::string_view word, std::vector<int32_t>* ids) const {
  if (!whole_words_.empty()) {
    const auto it = whole_words_.find(std::string(word));
    if (it != whole_words_.end()) {
      ids->push_back(it->second);
      return;
    }
  }
  std::vector<int32_t> symbols;
  symbols.reserve(word.size());
  for (char c : word) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    if (id >= 0) symbols.push_back(id);
  }
  if (symbols.size() > 1) MergeSymbols(&symbols);
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

void Bpe::MergeSymbols(std::vector<int32_t>* symbols) const {
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
    const auto it = merges_.find(PairKey(a, b));
    if (it != merges_.end()) heap.emplace(it->second.rank, left, a, b);
  };
  for (int i = 0; i + 1 < n; ++i) consider(i);
  constexpr int32_t kGone = -1;
  while (!heap.empty()) {
    const auto [rank, left, a, b] = heap.top();
    heap.pop();
    const int right = (*symbols)[left] == a ? next[left] : n;
    if (right >= n || (*symbols)[right] != b) continue;
    (*symbols)[left] = merges_.at(PairKey(a, b)).id;
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
