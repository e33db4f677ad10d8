// Byte-pair encoding of one word (Sennrich et al. 2016): the pair with the lowest rank is merged
// first, the leftmost of equals. Thread-safe (const) after Create.
#ifndef MILLRACE_MODEL_BPE_H_
#define MILLRACE_MODEL_BPE_H_

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

class Bpe {
 public:
  struct Spec {
    std::unordered_map<std::string, int32_t> vocab;  // token texts in the byte-level alphabet
    std::vector<std::pair<std::string, std::string>> merges;  // in rank order
    int32_t unk_id = -1;         // for bytes the vocabulary lacks; -1 = they are dropped
    bool ignore_merges = false;  // a word that is a token as a whole is that token
  };
  // INVALID_ARGUMENT names a merge whose parts or result are not in the vocabulary.
  static absl::StatusOr<Bpe> Create(Spec spec);

  // Appends the ids of `word` (raw bytes). n log n in its length.
  void Encode(absl::string_view word, std::vector<int32_t>* ids) const;
  // -1 when there is none.
  int32_t TokenId(absl::string_view text) const;
  const std::unordered_map<std::string, int32_t>& vocab() const { return vocab_; }

 private:
  struct Merge {
    int32_t rank;
    int32_t id;
  };
  static uint64_t PairKey(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  void MergeSymbols(std::vector<int32_t>* symbols) const;

  std::unordered_map<std::string, int32_t> vocab_;
  std::unordered_map<uint64_t, Merge> merges_;
  std::unordered_map<std::string, int32_t>
      whole_words_;  // by raw bytes; empty unless ignore_merges
  std::array<int32_t, 256> byte_ids_;
};

}  // namespace millrace

#endif  // MILLRACE_MODEL_BPE_H_
