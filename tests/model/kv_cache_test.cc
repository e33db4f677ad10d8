#include "model/kv_cache.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<KvCache> MakeCache(int64_t tokens) {
  ModelConfig config;
  config.layers = 2;
  config.kv_heads = 2;
  config.head_dim = 4;
  auto cache = KvCache::Create(config, tokens, at::kCPU);
  EXPECT_TRUE(cache.ok()) << cache.status();
  return *std::move(cache);
}

TEST(KvCacheTest, TakesABlockForEverySixteenTokensAndGivesThemBack) {
  auto cache = MakeCache(64);
  EXPECT_EQ(cache->total_blocks(), 4);
  {
    KvSequence sequence = cache->NewSequence();
    EXPECT_EQ(cache->BlocksNeeded(sequence, 16), 1);
    EXPECT_EQ(cache->BlocksNeeded(sequence, 17), 2);
    ASSERT_OK(cache->Extend(&sequence, 17));
    EXPECT_EQ(sequence.length(), 17);
    EXPECT_EQ(sequence.blocks().size(), 2u);
    EXPECT_EQ(cache->BlocksNeeded(sequence, 15), 0);
    EXPECT_EQ(cache->free_blocks(), 2);
    sequence.Clear();
    EXPECT_EQ(sequence.length(), 0);
    EXPECT_EQ(cache->free_blocks(), 4);
    ASSERT_OK(cache->Extend(&sequence, 1));
  }
  EXPECT_EQ(cache->free_blocks(), 4);
}

TEST(KvCacheTest, ForksShareBlocksUntilTheLastOneIsWritten) {
  auto cache = MakeCache(96);
  KvSequence prompt = cache->NewSequence();
  ASSERT_OK(cache->Extend(&prompt, 20));
  cache->keys(1).select(0, prompt.blocks()[1]).fill_(7);
  cache->values(0).select(0, prompt.blocks()[1]).fill_(8);
  KvSequence a = prompt.Fork(), b = prompt.Fork();
  EXPECT_EQ(cache->free_blocks(), 4);
  EXPECT_EQ(cache->BlocksNeeded(a, 1), 1);
  ASSERT_OK(cache->Extend(&a, 1));
  EXPECT_EQ(a.blocks()[0], prompt.blocks()[0]);
  EXPECT_NE(a.blocks()[1], prompt.blocks()[1]);
  EXPECT_TRUE(cache->keys(1).select(0, a.blocks()[1]).eq(7).all().item<bool>());
  EXPECT_TRUE(cache->values(0).select(0, a.blocks()[1]).eq(8).all().item<bool>());
  prompt.Clear();
  // The last holder writes in place.
  EXPECT_EQ(cache->BlocksNeeded(b, 1), 0);
  ASSERT_OK(cache->Extend(&b, 1));
  a.Clear();
  b.Clear();
  EXPECT_EQ(cache->free_blocks(), 6);
}

TEST(KvCacheTest, FullBlocksAreNeverCopied) {
  auto cache = MakeCache(64);
  KvSequence prompt = cache->NewSequence();
  ASSERT_OK(cache->Extend(&prompt, 16));
  KvSequence a = prompt.Fork();
  ASSERT_OK(cache->Extend(&a, 3));
  EXPECT_EQ(a.blocks()[0], prompt.blocks()[0]);
  EXPECT_EQ(cache->free_blocks(), 2);
}

TEST(KvCacheTest, AFullCacheLeavesTheSequenceAsItWas) {
  auto cache = MakeCache(32);
  KvSequence sequence = cache->NewSequence();
  ASSERT_OK(cache->Extend(&sequence, 20));
  EXPECT_THAT(cache->Extend(&sequence, 13),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("1 blocks wanted for 13 tokens after 20, 0 of 2 free")));
  EXPECT_EQ(sequence.length(), 20);
  EXPECT_EQ(sequence.blocks().size(), 2u);
  KvSequence fork = sequence.Fork();
  EXPECT_THAT(cache->Extend(&fork, 1), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(fork.blocks(), sequence.blocks());
}

TEST(KvCacheTest, MovedFromSequencesHoldNothing) {
  auto cache = MakeCache(32);
  KvSequence a = cache->NewSequence();
  ASSERT_OK(cache->Extend(&a, 1));
  KvSequence b = std::move(a);
  KvSequence c = cache->NewSequence();
  ASSERT_OK(cache->Extend(&c, 1));
  c = std::move(b);
  EXPECT_EQ(c.length(), 1);
  EXPECT_EQ(cache->free_blocks(), 1);
}

TEST(KvCacheTest, CapacityMustBePositive) {
  ModelConfig config;
  EXPECT_THAT(KvCache::Create(config, 0, at::kCPU),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 tokens")));
}

}  // namespace
}  // namespace millrace
