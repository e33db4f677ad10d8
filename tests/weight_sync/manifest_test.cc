#include "weight_sync/manifest.h"

#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/weight_sync/fake_weights.h"
#include "weight_sync/bucket_plan.h"
#include "weight_sync/digest.h"
#include "weight_sync/manifest_proto.h"
#include "weight_sync/version_assembly.h"
#include "weight_sync/version_writer.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

struct Written {
  VersionManifest manifest;
  std::shared_ptr<VersionBuffer> buffer;
};

Written Write(const FakeWeights& weights, int64_t version, uint64_t bucket_bytes, int threads) {
  Written out;
  out.manifest = *LayOutManifest(weights.spans(), bucket_bytes);
  out.manifest.run = "run";
  out.manifest.version = version;
  out.buffer = *VersionBuffer::Create(out.manifest.total_size);
  // Dirt, as a reused buffer has it.
  std::fill_n(out.buffer->data(), out.manifest.total_size, std::byte{0xa5});
  WriteVersion(weights.spans(), threads, out.buffer.get(), &out.manifest);
  return out;
}

TEST(Digest, StreamedPiecesGiveTheDigestOfTheWhole) {
  FakeWeights weights(1);
  auto bytes = weights.spans()[0].bytes;
  StreamDigest stream;
  stream.Update(bytes.first(1000));
  StreamDigest copy = stream;
  stream.Update(bytes.subspan(1000));
  copy.Update(bytes.subspan(1000));
  EXPECT_EQ(stream.Finish(), Digest64(bytes));
  EXPECT_EQ(copy.Finish(), Digest64(bytes));
}

TEST(Digest, IsXxh3OfNothingAsItsAuthorsPublishIt) { EXPECT_EQ(Digest64({}), 0x2d06800538d394c2u); }

TEST(Manifest, SurvivesTheWayThroughTheProto) {
  Written w = Write(FakeWeights(2), 7, 4096, 1);
  absl::StatusOr<VersionManifest> back = FromProto(ToProto(w.manifest));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, w.manifest);
}

TEST(Stages, HaveTheSameNumbersOnBothSidesOfTheDoor) {
  EXPECT_EQ(ToProto(SyncStage::kPrepared), v1::PREPARED);
  EXPECT_EQ(ToProto(SyncStage::kTransferred), v1::TRANSFERRED);
  EXPECT_EQ(ToProto(SyncStage::kVerified), v1::VERIFIED);
  EXPECT_EQ(ToProto(SyncStage::kActivated), v1::ACTIVATED);
  EXPECT_EQ(ToProto(SyncStage::kFailed), v1::SYNC_FAILED);
  EXPECT_EQ(FromProto(v1::VERIFIED), SyncStage::kVerified);
  EXPECT_EQ(FromProto(static_cast<v1::SyncStage>(77)), SyncStage::kNone);
}

TEST(Manifest, DigestsAreThoseOfTheBytesWhateverBucketsAndThreads) {
  FakeWeights weights(3);
  for (uint64_t bucket_bytes : {4096u, 5000u, 30000u, 1u << 20}) {
    for (int threads : {1, 3}) {
      Written w = Write(weights, 1, bucket_bytes, threads);
      ASSERT_TRUE(ValidateManifest(w.manifest).ok()) << ValidateManifest(w.manifest);
      for (size_t i = 0; i < weights.spans().size(); ++i) {
        EXPECT_EQ(w.manifest.tensors[i].digest, Digest64(weights.spans()[i].bytes)) << i;
      }
      for (const BucketMeta& b : w.manifest.buckets) {
        EXPECT_LE(b.size, bucket_bytes + kTensorAlignment);
        EXPECT_EQ(b.digest, Digest64(absl::MakeConstSpan(w.buffer->data() + b.offset, b.size)));
      }
      std::vector<NamedSpan> spans = SpansOver(w.manifest, w.buffer->data());
      for (size_t i = 0; i < spans.size(); ++i) {
        EXPECT_TRUE(spans[i].bytes == weights.spans()[i].bytes) << i;
      }
    }
  }
}

TEST(Manifest, ReusedMemoryDoesNotShowInThePadding) {
  Written w = Write(FakeWeights(4), 1, 4096, 2);
  uint64_t end = 0;
  for (const TensorMeta& t : w.manifest.tensors) {
    for (uint64_t at = end; at < t.offset; ++at) EXPECT_EQ(w.buffer->data()[at], std::byte{0});
    end = t.offset + t.size;
  }
}

TEST(BucketPlan, UnitsPartTensorsAndBucketsForRandomSizes) {
  const uint64_t seed = 20240607;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " round " << round);
    std::vector<std::vector<std::byte>> storage;
    std::vector<NamedSpan> spans;
    for (size_t i = 0, n = 1 + random() % 12; i < n; ++i) {
      storage.emplace_back(random() % (random() % 3 == 0 ? 40000 : 300));
    }
    storage.emplace_back(1);
    for (size_t i = 0; i < storage.size(); ++i) {
      spans.push_back(
          {absl::StrCat("t", i), "U8", {static_cast<int64_t>(storage[i].size())}, storage[i]});
    }
    absl::StatusOr<VersionManifest> m = LayOutManifest(spans, 4096 + random() % 5000);
    ASSERT_TRUE(m.ok()) << m.status();
    m->version = 0;
    m->digest = ManifestDigest(*m);
    ASSERT_TRUE(ValidateManifest(*m).ok()) << ValidateManifest(*m);
    size_t bucket = 0, tensor = 0;
    for (const BucketUnit& u : PlanUnits(*m)) {
      EXPECT_EQ(u.first_bucket, bucket);
      EXPECT_EQ(u.first_tensor, tensor);
      EXPECT_GT(u.last_bucket, u.first_bucket);
      // A unit of several buckets holds one large tensor, beside those without bytes.
      if (u.last_bucket - u.first_bucket > 1) {
        int with_bytes = 0;
        for (size_t t = u.first_tensor; t < u.last_tensor; ++t) {
          with_bytes += m->tensors[t].size > 0;
        }
        EXPECT_EQ(with_bytes, 1);
      }
      bucket = u.last_bucket;
      tensor = u.last_tensor;
    }
    EXPECT_EQ(bucket, m->buckets.size());
    EXPECT_EQ(tensor, m->tensors.size());
  }
}

TEST(Manifest, RefusesTensorsWhoseBytesDoNotFitTheirShape) {
  std::vector<std::byte> bytes(12);
  EXPECT_THAT(std::string(LayOutManifest({{"w", "F32", {4}, bytes}}, 4096).status().message()),
              HasSubstr("tensor 'w' has size 12; its shape and dtype need 16"));
  EXPECT_THAT(std::string(LayOutManifest({{"w", "F31", {3}, bytes}}, 4096).status().message()),
              HasSubstr("unknown dtype 'F31'"));
  EXPECT_THAT(std::string(LayOutManifest({{"w", "F32", {3}, bytes}, {"w", "F32", {3}, bytes}}, 4096)
                              .status()
                              .message()),
              HasSubstr("comes twice"));
  EXPECT_FALSE(LayOutManifest({}, 4096).ok());
}

TEST(Manifest, RefusesEveryHostileField) {
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  constexpr int64_t kHugeDim = std::numeric_limits<int64_t>::max();
  struct Case {
    const char* name;
    std::function<void(v1::Manifest*)> spoil;
    const char* message;
  };
  const std::vector<Case> cases = {
      {"format", [](v1::Manifest* m) { m->set_format(2); }, "format 2"},
      {"version", [](v1::Manifest* m) { m->set_version(-4); }, "version -4"},
      {"no tensors", [](v1::Manifest* m) { m->clear_tensors(); }, "0 tensors"},
      {"no buckets", [](v1::Manifest* m) { m->clear_buckets(); }, "0 buckets"},
      {"empty name", [](v1::Manifest* m) { m->mutable_tensors(1)->clear_name(); }, "name"},
      {"long name",
       [](v1::Manifest* m) { m->mutable_tensors(1)->set_name(std::string(5000, 'x')); }, "5000"},
      {"same name", [](v1::Manifest* m) { m->mutable_tensors(1)->set_name(m->tensors(0).name()); },
       "twice"},
      {"dtype", [](v1::Manifest* m) { m->mutable_tensors(0)->set_dtype("F13"); }, "F13"},
      {"negative dimension", [](v1::Manifest* m) { m->mutable_tensors(0)->set_shape(0, -1); },
       "negative"},
      {"overflowing shape", [](v1::Manifest* m) { m->mutable_tensors(0)->set_shape(0, kHugeDim); },
       "overflows"},
      {"wrapping shape",
       [](v1::Manifest* m) {
         m->mutable_tensors(0)->set_shape(0, int64_t{1} << 62);
         m->mutable_tensors(0)->set_shape(1, 4);
       },
       "overflows"},
      {"many dimensions",
       [](v1::Manifest* m) {
         for (int i = 0; i < 9; ++i) m->mutable_tensors(0)->add_shape(1);
       },
       "dimensions"},
      {"size", [](v1::Manifest* m) { m->mutable_tensors(0)->set_size(5); }, "has size 5"},
      {"overlap", [](v1::Manifest* m) { m->mutable_tensors(1)->set_offset(0); }, "offset 0"},
      {"hole",
       [](v1::Manifest* m) { m->mutable_tensors(1)->set_offset(m->tensors(1).offset() + 64); },
       "must be at"},
      {"far offset", [](v1::Manifest* m) { m->mutable_tensors(1)->set_offset(kHuge - 3); },
       "must be at"},
      {"total too small", [](v1::Manifest* m) { m->set_total_size(100); }, "100"},
      {"total too large", [](v1::Manifest* m) { m->set_total_size(m->total_size() + 1); },
       "total_size is"},
      {"absurd total", [](v1::Manifest* m) { m->set_total_size(kHuge); }, "total_size"},
      {"empty bucket", [](v1::Manifest* m) { m->mutable_buckets(0)->set_size(0); }, "bucket 0"},
      {"bucket overlap", [](v1::Manifest* m) { m->mutable_buckets(1)->set_offset(0); }, "bucket 1"},
      {"bucket beyond the end",
       [](v1::Manifest* m) { m->mutable_buckets(m->buckets_size() - 1)->set_size(kHuge); },
       "bytes"},
      {"bucket missing", [](v1::Manifest* m) { m->mutable_buckets()->RemoveLast(); },
       "the buckets end at"},
      {"one bucket too many",
       [](v1::Manifest* m) {
         v1::BucketEntry* b = m->add_buckets();
         b->set_offset(m->total_size());
         b->set_size(1);
       },
       "bucket"},
      {"tensor digest", [](v1::Manifest* m) { m->mutable_tensors(2)->set_digest(1); }, "digest"},
      {"digest", [](v1::Manifest* m) { m->set_digest(m->digest() ^ 1); }, "digest"},
  };
  const v1::Manifest good = ToProto(Write(FakeWeights(5), 3, 4096, 1).manifest);
  ASSERT_TRUE(FromProto(good).ok());
  for (const Case& c : cases) {
    v1::Manifest bad = good;
    c.spoil(&bad);
    absl::StatusOr<VersionManifest> got = FromProto(bad);
    EXPECT_FALSE(got.ok()) << c.name;
    EXPECT_THAT(std::string(got.status().message()), HasSubstr(c.message)) << c.name;
  }
}

TEST(Manifest, RefusesMoreEntriesThanTheLimits) {
  const VersionManifest m = Write(FakeWeights(6), 3, 4096, 1).manifest;
  ManifestLimits limits;
  limits.max_tensors = 3;
  EXPECT_FALSE(ValidateManifest(m, limits).ok());
  limits = {};
  limits.max_buckets = 2;
  EXPECT_FALSE(ValidateManifest(m, limits).ok());
  limits = {};
  limits.max_total_bytes = m.total_size - 1;
  EXPECT_FALSE(ValidateManifest(m, limits).ok());
}

// Feeds `from` into an assembly in pieces of `piece` bytes.
absl::Status Assemble(const Written& from, size_t piece, VersionAssembly* to) {
  while (!to->complete()) {
    const BucketMeta& b = from.manifest.buckets[to->next_bucket()];
    for (uint64_t at = 0; at < b.size;) {
      auto room = to->Room();
      size_t n = std::min(piece, room.size());
      std::copy_n(from.buffer->data() + b.offset + at, n, room.data());
      to->Filled(n);
      at += n;
    }
    absl::Status status = to->FinishBucket();
    if (!status.ok()) return status;
  }
  return to->VerifyTensors();
}

std::shared_ptr<VersionBytes> Empty(const VersionManifest& manifest) {
  return std::make_shared<VersionBytes>(
      manifest, std::shared_ptr<VersionBuffer>(*VersionBuffer::Create(manifest.total_size)),
      nullptr);
}

TEST(VersionAssembly, TakesTheBytesInPiecesOfAnySize) {
  for (size_t piece : {1u, 63u, 1000u, 1u << 20}) {
    Written w = Write(FakeWeights(7), 1, 5000, 1);
    VersionAssembly assembly(Empty(w.manifest));
    absl::Status status = Assemble(w, piece, &assembly);
    EXPECT_TRUE(status.ok()) << piece << ": " << status;
    EXPECT_TRUE(assembly.bytes()->whole());
  }
}

TEST(VersionAssembly, NamesTheBucketWithAWrongByteAndTakesItAgain) {
  Written w = Write(FakeWeights(8), 1, 5000, 1);
  VersionAssembly assembly(Empty(w.manifest));
  const uint64_t at = w.manifest.buckets[3].offset + 17;
  w.buffer->data()[at] ^= std::byte{4};
  absl::Status status = Assemble(w, 999, &assembly);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("bucket 3 of version 1"));
  EXPECT_EQ(assembly.bytes()->ready(), 3u);
  w.buffer->data()[at] ^= std::byte{4};
  EXPECT_TRUE(Assemble(w, 999, &assembly).ok());
}

TEST(VersionAssembly, GoesOnAfterABucketThatBrokeOff) {
  Written w = Write(FakeWeights(9), 1, 5000, 1);
  VersionAssembly assembly(Empty(w.manifest));
  std::fill_n(assembly.Room().data(), 100, std::byte{9});
  assembly.Filled(100);
  assembly.RestartBucket();
  EXPECT_TRUE(Assemble(w, 1234, &assembly).ok());
}

TEST(VersionAssembly, NamesTheTensorThatNoBucketDigestSawWrong) {
  Written w = Write(FakeWeights(10), 1, 5000, 1);
  w.manifest.tensors[4].digest ^= 1;
  VersionAssembly assembly(Empty(w.manifest));
  absl::Status status = Assemble(w, 4096, &assembly);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(w.manifest.tensors[4].name));
}

TEST(VersionBufferPool, ReusesMemoryOnlyAfterTheLastReaderLetGo) {
  VersionBufferPool pool;
  std::shared_ptr<VersionBuffer> first = *pool.Take(8192);
  std::shared_ptr<VersionBuffer> reader = first;
  std::byte* memory = first->data();
  first.reset();
  std::shared_ptr<VersionBuffer> second = *pool.Take(8192);
  EXPECT_NE(second->data(), memory);
  reader.reset();
  EXPECT_EQ((*pool.Take(8192))->data(), memory);
}

TEST(VersionBufferPool, GivesBackWhatATakeDoesNotNeed) {
  VersionBufferPool pool;
  const size_t before = MappedVersions();
  std::shared_ptr<VersionBuffer> first = *pool.Take(8192), second = *pool.Take(8192);
  first.reset();
  second.reset();
  EXPECT_EQ(MappedVersions(), before + 2);
  first = *pool.Take(8192);
  EXPECT_EQ(MappedVersions(), before + 1);
}

}  // namespace
}  // namespace millrace
