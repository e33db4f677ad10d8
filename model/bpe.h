// Byte-pair encoding of one word (Sennrich et al. 2016): the pair with the lowest rank is merged
// first, the leftmost of equals. Thread-safe (const) after Create.
#ifndef MILLRACE_MODEL_BPE_H_
#define MILLRACE_MODEL_BPE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace millrace {

class WordCache;

class Bpe {
 public:
  struct Spec {
    absl::flat_hash_map<std::string, int32_t> vocab;
    std::vector<std::pair<std::string, std::string>> merges;  // in rank order
    // true: words are bytes and token texts are in the byte-level alphabet. false: words and token
    // texts are UTF-8 characters.
    bool byte_level = true;
    int32_t unk_id = -1;         // for what the vocabulary lacks; -1 = it is dropped
    bool fuse_unk = false;       // neighbouring unknown characters are one unknown token
    bool byte_fallback = false;  // unknown characters become tokens "<0x0A>" where all are there
    bool ignore_merges = false;  // a word that is a token as a whole is that token
  };
  // INVALID_ARGUMENT names a merge whose parts or result are not in the vocabulary.
  static absl::StatusOr<Bpe> Create(Spec spec);
  Bpe();
  Bpe(Bpe&&) noexcept;
  Bpe& operator=(Bpe&&) noexcept;
  ~Bpe();

  // Appends the ids of `word` (byte_level: raw bytes, else well-formed UTF-8). n log n in its
  // length.
  void Encode(absl::string_view word, std::vector<int32_t>* ids) const;
  // -1 when there is none.
  int32_t TokenId(absl::string_view text) const;
  const absl::flat_hash_map<std::string, int32_t>& vocab() const { return vocab_; }
  bool byte_level() const { return byte_level_; }
  int32_t unk_id() const { return unk_id_; }
  // The byte that a byte-fallback token stands for; -1 for others.
  static int ByteOfFallback(absl::string_view text);

 private:
  struct Merge {
    int32_t rank;
    int32_t id;
  };
  // Of an open-addressing table; a key of all ones is free.
  struct Slot {
    uint64_t key;
    Merge merge;
  };
  void EncodeUncached(absl::string_view word, std::vector<int32_t>* ids) const;
  void Symbols(absl::string_view word, std::vector<int32_t>* symbols) const;
  void MergeShort(std::vector<int32_t>* symbols) const;
  void MergeLong(std::vector<int32_t>* symbols) const;
  absl::Status AddMerges(const Spec& spec);
  const Merge* FindMerge(int32_t left, int32_t right) const;

  absl::flat_hash_map<std::string, int32_t> vocab_;
  std::vector<Slot> merges_;  // a power of two of slots, at most half of them used
  absl::flat_hash_map<std::string, int32_t> whole_words_;  // as words; empty unless ignore_merges
  std::array<int32_t, 256> byte_ids_;  // of the alphabet, or of the fallback; -1 = none
  bool byte_level_ = true, fuse_unk_ = false, byte_fallback_ = false;
  int32_t unk_id_ = -1;
  std::unique_ptr<WordCache> cache_;
};

}  // namespace millrace

#endif  // MILLRACE_MODEL_BPE_H_
