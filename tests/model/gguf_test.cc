#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "model/gguf_dequant.h"
#include "model/gguf_reader.h"
#include "model/safetensors.h"
#include "tests/model/gguf_builder.h"
#include "tests/model/temp_dir.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::GgufBuilder;
using ::millrace::testing::IsOk;
using ::millrace::testing::Raw;
using ::millrace::testing::StatusIs;
using ::millrace::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

GgufBuilder Small() {
  GgufBuilder b;
  b.String("general.architecture", "llama");
  b.Integer("llama.block_count", 2);
  b.Float("llama.rope.freq_base", 1e5f);
  b.Strings("tokenizer.ggml.tokens", {"a", "b"});
  b.Integers("tokenizer.ggml.token_type", {1, -3});
  b.Tensor("f32", {2, 3}, 0, std::string(24, '\0'));
  b.Tensor("f16", {2}, 1, Raw<uint16_t>(0x3c00) + Raw<uint16_t>(0xc000));
  std::string q8 = Raw<uint16_t>(0x3800);  // 0.5
  for (int i = 0; i < 32; ++i) q8 += static_cast<char>(i - 16);
  b.Tensor("q8", {32}, 8, q8);
  std::string q41 = Raw<uint16_t>(0x4000) + Raw<uint16_t>(0xbc00);  // 2 q - 1
  for (int i = 0; i < 16; ++i) q41 += static_cast<char>((15 - i) << 4 | i);
  b.Tensor("q4_1", {32}, 3, q41);
  return b;
}

TEST(Gguf, ReadsValuesAndDequantisesEveryType) {
  const TempDir dir;
  const auto gguf = GgufReader::Open(dir.Write("m.gguf", Small().File()));
  ASSERT_THAT(gguf, IsOk());
  EXPECT_EQ(gguf->Get<std::string>("general.architecture"), "llama");
  EXPECT_EQ(gguf->Get<int64_t>("llama.block_count"), 2);
  EXPECT_EQ(gguf->Get<double>("llama.rope.freq_base"), 1e5);
  EXPECT_EQ(gguf->Get<int64_t>("general.architecture"), std::nullopt);
  EXPECT_THAT(*gguf->Get<std::vector<std::string>>("tokenizer.ggml.tokens"), ElementsAre("a", "b"));
  EXPECT_THAT(*gguf->Get<std::vector<int64_t>>("tokenizer.ggml.token_type"), ElementsAre(1, -3));
  EXPECT_THAT(gguf->tensors().at("f32").shape, ElementsAre(3, 2));
  std::vector<float> two(2), block(32);
  ASSERT_THAT(Dequantize(gguf->tensors().at("f16"), absl::MakeSpan(two)), IsOk());
  EXPECT_THAT(two, ElementsAre(1, -2));
  ASSERT_THAT(Dequantize(gguf->tensors().at("q8"), absl::MakeSpan(block)), IsOk());
  for (int i = 0; i < 32; ++i) EXPECT_EQ(block[i], 0.5f * (i - 16));
  ASSERT_THAT(Dequantize(gguf->tensors().at("q4_1"), absl::MakeSpan(block)), IsOk());
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(block[i], 2.0f * i - 1);
    EXPECT_EQ(block[16 + i], 2.0f * (15 - i) - 1);
  }
  EXPECT_THAT(Dequantize(gguf->tensors().at("q8"), absl::MakeSpan(two)),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Gguf, EveryTruncationIsRefused) {
  const TempDir dir;
  const std::string whole = Small().File();
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(GgufReader::Open(dir.Write("cut.gguf", whole.substr(0, size))).ok()) << size;
  }
}

TEST(Gguf, AFlippedByteNeverCrashesTheReader) {
  const TempDir dir;
  const std::string whole = Small().File();
  for (size_t at = 0; at + 150 < whole.size(); ++at) {
    for (char flip : {'\x01', '\x80', '\xff'}) {
      std::string bad = whole;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      const auto gguf = GgufReader::Open(dir.Write("bad.gguf", bad));
      if (!gguf.ok()) continue;
      for (const auto& [name, tensor] : gguf->tensors()) {
        std::vector<float> out(64);
        Dequantize(tensor, absl::MakeSpan(out)).IgnoreError();
      }
    }
  }
}

TEST(Gguf, AbsurdCountsAreRefusedBeforeAnythingIsAllocated) {
  struct Case {
    std::function<void(GgufBuilder*)> spoil;
    const char* named;
  };
  constexpr uint64_t kHuge = uint64_t{1} << 62;
  const Case cases[] = {
      {[](GgufBuilder* b) { b->tensor_count = kHuge; }, "claims 4611686018427387904 tensors"},
      {[](GgufBuilder* b) { b->value_count = kHuge; }, "4611686018427387904 values"},
      {[](GgufBuilder* b) { b->version = 9; }, "version 9"},
      {[](GgufBuilder* b) { b->Add("x", 9, Raw<uint32_t>(5) + Raw(kHuge)); }, "\"x\": an array of"},
      {[](GgufBuilder* b) { b->Add("x", 9, Raw<uint32_t>(9) + Raw<uint64_t>(1)); },
       "\"x\": an array of kind 9"},
      {[](GgufBuilder* b) { b->Add("x", 8, Raw(kHuge)); }, "\"x\": a string of"},
      {[](GgufBuilder* b) { b->Add("x", 77, ""); }, "\"x\": a value of kind 77"},
      {[](GgufBuilder* b) { b->Integer("llama.block_count", 3); }, "stands twice"},
      {[](GgufBuilder* b) { b->Integer("general.alignment", 0); }, "general.alignment"},
      {[](GgufBuilder* b) {
         b->Tensor("t", {kHuge, 2}, 0, "");
       },
       "\"t\""},
      {[](GgufBuilder* b) { b->Tensor("t", {0}, 0, ""); }, "\"t\""},
      {[](GgufBuilder* b) {
         b->Tensor("t", {1, 1, 1, 1, 1}, 0, "");
       },
       "\"t\": 5 dimensions"},
      {[](GgufBuilder* b) { b->Tensor("t", {31}, 8, std::string(34, 'x')); }, "\"t\": rows of 31"},
      {[](GgufBuilder* b) { b->Tensor("t", {64}, 0, "short"); }, "\"t\" at"},
      {[](GgufBuilder* b) { b->Tensor("f16", {1}, 0, "full"); }, "\"f16\" stands twice"},
  };
  const TempDir dir;
  for (const Case& c : cases) {
    GgufBuilder b = Small();
    c.spoil(&b);
    const std::string path = dir.Write("bad.gguf", b.File());
    const auto gguf = GgufReader::Open(path);
    ASSERT_FALSE(gguf.ok()) << c.named;
    EXPECT_THAT(std::string(gguf.status().message()), HasSubstr(c.named));
    EXPECT_THAT(std::string(gguf.status().message()), HasSubstr(path));
  }
}

TEST(Gguf, AnUnsupportedTensorTypeIsNamed) {
  const TempDir dir;
  GgufBuilder b = Small();
  b.Tensor("odd", {256}, 20, std::string(144, 'x'));
  const auto gguf = GgufReader::Open(dir.Write("m.gguf", b.File()));
  ASSERT_THAT(gguf, IsOk());
  std::vector<float> out(256);
  EXPECT_THAT(Dequantize(gguf->tensors().at("odd"), absl::MakeSpan(out)),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("IQ4_NL")));
}

TEST(Gguf, EveryTypeIsWhatTheReferenceMakesOfItToTheLastBit) {
  const std::string dir = std::string(MILLRACE_GOLDEN_DIR) + "/gguf/";
  const auto gguf = GgufReader::Open(dir + "types.gguf");
  const auto expected = SafetensorsReader::Open(dir + "types.safetensors");
  ASSERT_THAT(gguf, IsOk());
  ASSERT_THAT(expected, IsOk());
  EXPECT_EQ(gguf->tensors().size(), 13u);
  for (const auto& [name, tensor] : gguf->tensors()) {
    SCOPED_TRACE(name);
    EXPECT_EQ(tensor.type, name);
    const TensorView wanted = expected->Get(name).value();
    EXPECT_EQ(tensor.shape, wanted.shape);
    std::vector<float> values(wanted.bytes.size() / sizeof(float));
    ASSERT_THAT(Dequantize(tensor, absl::MakeSpan(values)), IsOk());
    EXPECT_EQ(std::memcmp(values.data(), wanted.bytes.data(), wanted.bytes.size()), 0);
    EXPECT_THAT(SupportedGgufTypes(), HasSubstr(name));
  }
}

// Two parts of a model; the second has no metadata of its own but its number.
GgufBuilder Part(int index, int count) {
  GgufBuilder b = index == 0 ? Small() : GgufBuilder();
  b.Integer("split.no", index);
  b.Integer("split.count", count);
  b.Integer("split.tensors.count", 5);
  if (index > 0) b.Tensor("late", {3}, 0, std::string(12, '\0'));
  return b;
}

TEST(Gguf, AnyPartOfASplitModelStandsForAllOfThem) {
  const TempDir dir;
  const std::string first = dir.Write("m-00001-of-00002.gguf", Part(0, 2).File());
  const std::string second = dir.Write("m-00002-of-00002.gguf", Part(1, 2).File());
  for (const std::string& path : {first, second}) {
    const auto gguf = GgufReader::Open(path);
    ASSERT_THAT(gguf, IsOk());
    EXPECT_EQ(gguf->tensors().size(), 5u);
    EXPECT_EQ(gguf->files().size(), 2u);
    EXPECT_EQ(gguf->Get<std::string>("general.architecture"), "llama");
    EXPECT_EQ(gguf->file_bytes(), Part(0, 2).File().size() + Part(1, 2).File().size());
  }
}

TEST(Gguf, BrokenSplitsAreRefusedByName) {
  struct Case {
    const char* second_name;
    std::function<void(GgufBuilder*)> spoil;
    absl::StatusCode code;
    const char* named;
  };
  const auto none = [](GgufBuilder*) {};
  const Case cases[] = {
      {"elsewhere.gguf", none, absl::StatusCode::kNotFound, "m-00002-of-00002.gguf"},
      {"m-00002-of-00002.gguf", [](GgufBuilder* b) { *b = Part(0, 2); },
       absl::StatusCode::kInvalidArgument, "stands in an earlier part"},
      {"m-00002-of-00002.gguf", [](GgufBuilder* b) { *b = Part(1, 3); },
       absl::StatusCode::kInvalidArgument, "part 2 of 3"},
      {"m-00002-of-00002.gguf",
       [](GgufBuilder* b) { b->Tensor("later", {3}, 0, std::string(12, 'x')); },
       absl::StatusCode::kInvalidArgument, "6 tensors, expected 5"},
  };
  for (const Case& c : cases) {
    const TempDir dir;
    const std::string first = dir.Write("m-00001-of-00002.gguf", Part(0, 2).File());
    GgufBuilder second = Part(1, 2);
    c.spoil(&second);
    dir.Write(c.second_name, second.File());
    EXPECT_THAT(GgufReader::Open(first), StatusIs(c.code, HasSubstr(c.named)));
  }
  const TempDir dir;
  EXPECT_THAT(GgufReader::Open(dir.Write("renamed.gguf", Part(0, 2).File())),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("one of 2 parts")));
  EXPECT_THAT(GgufReader::Open(dir.Write("m-00001-of-99999.gguf", Part(0, 99999).File())),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("one of 99999 parts")));
}

}  // namespace
}  // namespace millrace
