#include "model/kv_cache.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/kernels/decode_memory.h"

namespace millrace {
namespace {

// Tensors one after the other in an arena that lives as long as one of them: a cache is sized for
// the worst case, and most runs never write all of it.
class CacheMemory {
 public:
  explicit CacheMemory(int64_t bytes) : arena_(std::make_shared<decode::HugeArena>(bytes)) {}
  at::Tensor Zeros(at::IntArrayRef shape) {
    return at::from_blob(
        arena_->Take(c10::multiply_integers(shape)), shape, [arena = arena_](void*) {}, at::kFloat);
  }

 private:
  std::shared_ptr<decode::HugeArena> arena_;
};

int64_t BlocksFor(int64_t tokens) {
  return (tokens + KvCache::kBlockTokens - 1) / KvCache::kBlockTokens;
}

}  // namespace

KvSequence::KvSequence(KvSequence&& other) noexcept
    : cache_(other.cache_),
      length_(std::exchange(other.length_, 0)),
      blocks_(std::exchange(other.blocks_, {})) {}

KvSequence& KvSequence::operator=(KvSequence&& other) noexcept {
  if (this != &other) {
    Clear();
    cache_ = other.cache_;
    length_ = std::exchange(other.length_, 0);
    blocks_ = std::exchange(other.blocks_, {});
  }
  return *this;
}

KvSequence::~KvSequence() { Clear(); }

KvSequence KvSequence::Fork() const {
  KvSequence fork(cache_);
  fork.length_ = length_;
  fork.blocks_ = blocks_;
  for (int32_t block : blocks_) ++cache_->refs_[block];
  return fork;
}

void KvSequence::Clear() {
  if (!blocks_.empty()) cache_->Release(&blocks_);
  length_ = 0;
}

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(const ModelConfig& config,
                                                         int64_t capacity_tokens,
                                                         at::Device device) {
  if (capacity_tokens <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV cache of ", capacity_tokens, " tokens: must be positive"));
  }
  const int64_t blocks = BlocksFor(capacity_tokens);
  const std::vector<int64_t> key_shape = {blocks, config.kv_heads, config.head_dim, kBlockTokens};
  const std::vector<int64_t> value_shape = {blocks, config.kv_heads, kBlockTokens, config.head_dim};
  std::unique_ptr<KvCache> cache(new KvCache());
  try {
    const at::TensorOptions options = at::TensorOptions().dtype(at::kFloat).device(device);
    std::unique_ptr<CacheMemory> memory;
    if (device.is_cpu()) {
      const int64_t tensor_bytes = decode::HugeArena::RoundedBytes(blocks * config.kv_heads *
                                                                   config.head_dim * kBlockTokens);
      memory = std::make_unique<CacheMemory>(2 * config.layers * tensor_bytes);
    }
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      cache->keys_.push_back(memory ? memory->Zeros(key_shape) : at::zeros(key_shape, options));
      cache->values_.push_back(memory ? memory->Zeros(value_shape)
                                      : at::zeros(value_shape, options));
    }
  } catch (const std::exception& e) {
    return absl::ResourceExhaustedError(
        absl::StrCat("KV cache of ", capacity_tokens, " tokens on ", device.str(), ": ", e.what()));
  }
  cache->refs_.assign(blocks, 0);
  // Low blocks are taken first, and a freed one before a new one.
  for (int64_t block = blocks - 1; block >= 0; --block) {
    cache->free_.push_back(static_cast<int32_t>(block));
  }
  return cache;
}

int64_t KvCache::BlocksNeeded(const KvSequence& sequence, int64_t tokens) const {
  if (tokens <= 0) return 0;
  const int64_t fresh =
      BlocksFor(sequence.length_ + tokens) - static_cast<int64_t>(sequence.blocks_.size());
  const bool copy = sequence.length_ % kBlockTokens != 0 && refs_[sequence.blocks_.back()] > 1;
  return fresh + (copy ? 1 : 0);
}

absl::Status KvCache::Extend(KvSequence* sequence, int64_t tokens) {
  if (tokens <= 0) return absl::OkStatus();
  const int64_t needed = BlocksNeeded(*sequence, tokens);
  if (needed > free_blocks()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("KV cache: ", needed, " blocks wanted for ", tokens, " tokens after ",
                     sequence->length_, ", ", free_blocks(), " of ", total_blocks(), " free"));
  }
  std::vector<int32_t>& blocks = sequence->blocks_;
  const auto take = [this] {
    const int32_t block = free_.back();
    free_.pop_back();
    refs_[block] = 1;
    return block;
  };
  if (sequence->length_ % kBlockTokens != 0 && refs_[blocks.back()] > 1) {
    const int32_t shared = blocks.back();
    const int32_t own = take();
    for (int64_t layer = 0; layer < layers(); ++layer) {
      keys_[layer].select(0, own).copy_(keys_[layer].select(0, shared));
      values_[layer].select(0, own).copy_(values_[layer].select(0, shared));
    }
    --refs_[shared];
    blocks.back() = own;
  }
  sequence->length_ += tokens;
  while (static_cast<int64_t>(blocks.size()) < BlocksFor(sequence->length_)) {
    blocks.push_back(take());
  }
  return absl::OkStatus();
}

void KvCache::Release(std::vector<int32_t>* blocks) {
  for (auto block = blocks->rbegin(); block != blocks->rend(); ++block) {
    if (--refs_[*block] == 0) free_.push_back(*block);
  }
  blocks->clear();
}

}  // namespace millrace
