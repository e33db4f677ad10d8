// Paged key/value cache: blocks of kBlockTokens tokens, reference-counted, so that a group's prompt
// is held once and shared by its G samples (a partly filled last block is copied on the first write
// to it). Not thread-safe.
#ifndef MILLRACE_MODEL_KV_CACHE_H_
#define MILLRACE_MODEL_KV_CACHE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/model_config.h"

namespace millrace {

class KvCache;

// One sequence's view of the cache. Gives its blocks back when destroyed; must not outlive the
// cache.
class KvSequence {
 public:
  KvSequence(KvSequence&& other) noexcept;
  KvSequence& operator=(KvSequence&& other) noexcept;
  ~KvSequence();
  int64_t length() const { return length_; }  // tokens
  const std::vector<int32_t>& blocks() const { return blocks_; }
  // A sequence that starts with the same tokens; shares the blocks.
  KvSequence Fork() const;
  // Back to zero tokens.
  void Clear();

 private:
  friend class KvCache;
  explicit KvSequence(KvCache* cache) : cache_(cache) {}
  KvCache* cache_;
  int64_t length_ = 0;
  std::vector<int32_t> blocks_;
};

class KvCache {
 public:
  static constexpr int64_t kBlockTokens = 16;
  // Room for at least `capacity_tokens`, on `device`, fp32. Layout per layer: keys (blocks,
  // kv_heads, head_dim, kBlockTokens), so that the scores of a block's tokens are one vector;
  // values (blocks, kv_heads, kBlockTokens, head_dim). On the CPU memory is taken from the system
  // as it is first written.
  static absl::StatusOr<std::unique_ptr<KvCache>> Create(const ModelConfig& config,
                                                         int64_t capacity_tokens,
                                                         at::Device device);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;
  KvSequence NewSequence() { return KvSequence(this); }
  // Makes room for `tokens` more at the end of `sequence`, copying a shared last block.
  // RESOURCE_EXHAUSTED with wanted and free blocks; the sequence is unchanged then. length() grows
  // at once.
  absl::Status Extend(KvSequence* sequence, int64_t tokens);
  int64_t free_blocks() const { return static_cast<int64_t>(free_.size()); }
  int64_t total_blocks() const { return static_cast<int64_t>(refs_.size()); }
  // Blocks that Extend(sequence, tokens) would take.
  int64_t BlocksNeeded(const KvSequence& sequence, int64_t tokens) const;
  int64_t layers() const { return static_cast<int64_t>(keys_.size()); }
  at::Tensor& keys(int64_t layer) { return keys_[layer]; }
  at::Tensor& values(int64_t layer) { return values_[layer]; }

 private:
  friend class KvSequence;
  KvCache() = default;
  void Release(std::vector<int32_t>* blocks);
  std::vector<at::Tensor> keys_, values_;
  std::vector<int32_t> refs_;
  std::vector<int32_t> free_;
};

}  // namespace millrace

#endif  // MILLRACE_MODEL_KV_CACHE_H_
