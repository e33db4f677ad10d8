#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "nlohmann/json.hpp"
#include "tests/model/temp_dir.h"
#include "tests/testing/status_matchers.h"

namespace millrace {
namespace {

using ::millrace::testing::IsOk;
using ::millrace::testing::StatusIs;
using ::millrace::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string FileOf(const std::string& header, size_t data_bytes) {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
  return file + header + std::string(data_bytes, 'x');
}

template <typename T>
absl::Span<const std::byte> BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)};
}

TEST(Safetensors, TensorsAreCopiedOutOfTheFileInAnyPieces) {
  const TempDir dir;
  std::vector<float> a(1000);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i);
  const std::vector<float> b = {-1, -2};
  const std::string path = dir.File("model.safetensors");
  ASSERT_THAT(WriteSafetensors(
                  path, {{"a", {"F32", {10, 100}, BytesOf(a)}}, {"b", {"F32", {2}, BytesOf(b)}}}),
              IsOk());
  const auto reader = CheckpointReader::Open(dir.path());
  ASSERT_THAT(reader, IsOk());
  std::vector<float> values(3);
  const absl::Span<std::byte> out(reinterpret_cast<std::byte*>(values.data()), 12);
  ASSERT_THAT(reader->Read("a", 997 * 4, out), IsOk());
  EXPECT_THAT(values, ElementsAre(997, 998, 999));
  ASSERT_THAT(reader->Read("b", 0, out.subspan(0, 8)), IsOk());
  EXPECT_THAT(values, ElementsAre(-1, -2, 999));
  for (const uint64_t offset : {uint64_t{998 * 4}, uint64_t{5000}, ~uint64_t{0}}) {
    EXPECT_THAT(reader->Read("a", offset, out), StatusIs(absl::StatusCode::kOutOfRange));
  }
  EXPECT_THAT(reader->Read("c", 0, out), StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"c\"")));
  // A file that somebody else cuts short is an error, where a map of it would be a signal.
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 20);
  EXPECT_THAT(reader->Read("a", 0, out), IsOk());
  EXPECT_THAT(reader->Read("a", 997 * 4, out),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("model.safetensors: ends at byte")));
}

TEST(Safetensors, EveryHalfBecomesItsFloat) {
  std::vector<uint16_t> halves(1 << 16);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> values(halves.size());
  ASSERT_THAT(ConvertToFloat32({"F16", {1 << 16}, BytesOf(halves)}, absl::MakeSpan(values)),
              IsOk());
  for (size_t i = 0; i < halves.size(); ++i) {
    const float expected = HalfToFloat(halves[i]);
    ASSERT_EQ(std::memcmp(&values[i], &expected, sizeof(float)), 0) << i;
  }
}

// What the loading of a checkpoint does: the numbers are read into the place of their floats.
TEST(Safetensors, NumbersConvertWhereTheyLie) {
  constexpr int64_t kAround = 3;
  std::vector<uint16_t> numbers(1 << 16);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<uint16_t>(i * 7);
  for (const char* dtype : {"BF16", "F16"}) {
    for (const int64_t n : {1, 2, 31, 32, 33, 64, 1000, 1 << 16}) {
      std::vector<float> expected(n), values(n + 2 * kAround, 0.5f);
      const auto bytes = BytesOf(numbers).subspan(0, 2 * n);
      ASSERT_THAT(ConvertToFloat32({dtype, {n}, bytes}, absl::MakeSpan(expected)), IsOk());
      const absl::Span<float> out = absl::MakeSpan(values).subspan(kAround, n);
      std::byte* const in = reinterpret_cast<std::byte*>(out.data()) + 2 * n;
      std::memcpy(in, bytes.data(), bytes.size());
      ASSERT_THAT(ConvertToFloat32({dtype, {n}, {in, bytes.size()}}, out), IsOk());
      EXPECT_EQ(std::memcmp(out.data(), expected.data(), n * sizeof(float)), 0) << dtype << n;
      for (int64_t i = 0; i < kAround; ++i) {
        EXPECT_EQ(values[i], 0.5f);
        EXPECT_EQ(values[kAround + n + i], 0.5f);
      }
    }
  }
}

TEST(Safetensors, AFolderOfOtherWeightsIsToldWhatToDo) {
  const TempDir dir;
  dir.Write("pytorch_model.bin", "x");
  EXPECT_THAT(CheckpointReader::Open(dir.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("pytorch_model.bin is not read")));
}

TEST(Safetensors, WhatIsWrittenReadsBackTheSame) {
  const TempDir dir;
  const std::vector<float> a = {1.5f, -2, 3, 4, 5, 6};
  const std::vector<uint16_t> b = {0x3f80, 0xc000};
  const std::map<std::string, TensorView> tensors = {{"z.a", {"F32", {2, 3}, BytesOf(a)}},
                                                     {"b", {"BF16", {2}, BytesOf(b)}},
                                                     {"empty", {"F32", {0, 4}, {}}}};
  ASSERT_THAT(WriteSafetensors(dir.File("m.safetensors"), tensors, {{"step", "7"}}), IsOk());
  EXPECT_EQ(dir.entries(), 1u);
  const auto reader = SafetensorsReader::Open(dir.File("m.safetensors"));
  ASSERT_THAT(reader, IsOk());
  EXPECT_EQ(reader->tensors().size(), 3u);
  EXPECT_EQ(reader->metadata().at("step"), "7");
  EXPECT_EQ(reader->metadata().at("format"), "pt");
  const auto z = reader->Get("z.a");
  ASSERT_THAT(z, IsOk());
  EXPECT_THAT(z->shape, ElementsAre(2, 3));
  std::vector<float> values(6);
  ASSERT_THAT(ConvertToFloat32(*z, absl::MakeSpan(values)), IsOk());
  EXPECT_EQ(values, a);
  values.resize(2);
  ASSERT_THAT(ConvertToFloat32(*reader->Get("b"), absl::MakeSpan(values)), IsOk());
  EXPECT_THAT(values, ElementsAre(1, -2));
  EXPECT_THAT(ConvertToFloat32(*z, absl::MakeSpan(values)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("6 elements for 2")));
  EXPECT_THAT(reader->Get("missing"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("missing")));
}

TEST(Safetensors, ATensorOfTheWrongSizeIsNotWritten) {
  const TempDir dir;
  const std::vector<float> a = {1, 2, 3};
  EXPECT_THAT(WriteSafetensors(dir.File("m"), {{"a", {"F32", {2, 2}, BytesOf(a)}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"a\"")));
  EXPECT_EQ(dir.entries(), 0u);
}

TEST(Safetensors, LyingHeadersAreRefusedByName) {
  struct Case {
    const char* header;
    size_t data;
    const char* named;
  };
  const Case cases[] = {
      {"not json", 0, "not a JSON object"},
      {"[]", 0, "not a JSON object"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4, "leave the file"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "leave the file"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 12, "end at byte 8 of 12"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8, "span 8 bytes"},
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, "-2"},
      {R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,8]}})", 8, "1.5"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", 8,
       "too large"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551615,0],"data_offsets":[0,0]}})", 0,
       "18446744073709551615"},
      {R"({"a":{"dtype":"Q4","shape":[2],"data_offsets":[0,8]}})", 8, "\"Q4\" is unknown"},
      {R"({"a":{"dtype":"F32","shape":[2]}})", 8, "needs dtype, shape and data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,-8]}})", 8, "byte positions"},
      {R"({"a":7})", 0, "\"a\""},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
           "b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
       12, "inside"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
           "b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
       12, "not after"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
           "a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8, "\"a\" stands twice"},
      {R"({"__metadata__":3})", 0, "__metadata__"},
  };
  const TempDir dir;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.header);
    const std::string path = dir.Write("bad.safetensors", FileOf(c.header, c.data));
    const auto reader = SafetensorsReader::Open(path);
    EXPECT_THAT(reader, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.named)));
    EXPECT_THAT(reader, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(path)));
  }
}

TEST(Safetensors, EveryTruncationOfAFileIsRefused) {
  const TempDir dir;
  const std::string whole = FileOf(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string path = dir.Write("cut.safetensors", whole.substr(0, size));
    EXPECT_THAT(SafetensorsReader::Open(path).status(), ::testing::Not(IsOk())) << size;
  }
  EXPECT_THAT(SafetensorsReader::Open(dir.Write("cut.safetensors", whole)), IsOk());
}

TEST(Safetensors, AHeaderLongerThanTheFileIsRefused) {
  const TempDir dir;
  for (const std::string& length : {std::string(8, '\xff'), std::string("\x10\0\0\0\0\0\0\0", 8)}) {
    EXPECT_THAT(SafetensorsReader::Open(dir.Write("m", length + "{}")),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("in a file of 10")));
  }
}

TEST(Safetensors, HalvesConvertExactlyAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = HalfToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(value))));
    } else {
      ASSERT_EQ(FloatToHalf(value), bits);
    }
  }
  EXPECT_EQ(HalfToFloat(0x3c00), 1.0f);
  EXPECT_EQ(HalfToFloat(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(FloatToHalf(65504.0f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);                   // rounds up to infinity
  EXPECT_EQ(FloatToHalf(1 + std::ldexp(1.0f, -11)), 0x3c00);  // ties go to even
  EXPECT_EQ(FloatToHalf(1 + 3 * std::ldexp(1.0f, -11)), 0x3c02);
  EXPECT_EQ(FloatToHalf(std::ldexp(1.0f, -25)), 0);
  EXPECT_EQ(FloatToBfloat16(1.0f + std::ldexp(1.0f, -8)), 0x3f80);
  EXPECT_EQ(FloatToBfloat16(1.0f + 3 * std::ldexp(1.0f, -8)), 0x3f82);
}

TEST(Checkpoint, ReadsShardsThatAnIndexNames) {
  const TempDir dir;
  const std::vector<float> a = {1}, b = {2};
  ASSERT_THAT(WriteSafetensors(dir.File("one.safetensors"), {{"a", {"F32", {1}, BytesOf(a)}}}),
              IsOk());
  ASSERT_THAT(WriteSafetensors(dir.File("two.safetensors"), {{"b", {"F32", {1}, BytesOf(b)}}}),
              IsOk());
  const char* index = "model.safetensors.index.json";
  dir.Write(index, R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})");
  const auto reader = CheckpointReader::Open(dir.path());
  ASSERT_THAT(reader, IsOk());
  EXPECT_THAT(reader->Names(), ElementsAre("a", "b"));
  float value = 0;
  ASSERT_THAT(ConvertToFloat32(*reader->Get("b"), absl::MakeSpan(&value, 1)), IsOk());
  EXPECT_EQ(value, 2);

  struct Case {
    const char* index;
    const char* named;
  };
  const Case cases[] = {
      {R"({"weight_map": {"a": "one.safetensors", "b": "three.safetensors"}})",
       "model.safetensors.index.json names three.safetensors: "},
      {R"({"weight_map": {"a": "one.safetensors", "b": "one.safetensors"}})", "\"b\""},
      {R"({"weight_map": {"a": "../one.safetensors"}})", "\"a\" names no file"},
      {R"({"weight_map": {"a": 7}})", "\"a\" names no file"},
      {R"({"metadata": {}})", "weight_map"},
      {"{", "weight_map"},
  };
  for (const Case& c : cases) {
    dir.Write(index, c.index);
    const auto broken = CheckpointReader::Open(dir.path());
    EXPECT_FALSE(broken.ok()) << c.index;
    EXPECT_THAT(std::string(broken.status().message()), HasSubstr(c.named)) << c.index;
  }
}

TEST(Checkpoint, AFolderWithoutWeightsSaysWhatItLooksFor) {
  const TempDir dir;
  EXPECT_THAT(CheckpointReader::Open(dir.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("model.safetensors")));
}

}  // namespace
}  // namespace millrace
