// Compiled with -ffp-contract=off: a fused multiply-add would round what is scaled and shifted
// differently. Layouts are those of ggml's block structs; q stands for the stored integer.
#include "model/gguf_dequant.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "model/safetensors.h"

namespace millrace {
namespace {

constexpr int64_t kSmall = 32;   // elements of a block of Q4_0 .. Q8_0
constexpr int64_t kSuper = 256;  // elements of a block of Q2_K .. Q6_K

uint8_t Byte(const std::byte* at) { return static_cast<uint8_t>(*at); }

float Half(const std::byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return HalfToFloat(bits);
}

float Float(int value) { return static_cast<float>(value); }

// Element i of 32 nibbles: the low ones of 16 bytes first, then the high ones.
int Nibble(const std::byte* at, int64_t i) {
  const uint8_t pair = Byte(at + i % 16);
  return i < 16 ? pair & 15 : pair >> 4;
}

int Bit(const std::byte* at, int64_t i) { return Byte(at + i / 8) >> (i % 8) & 1; }

// d, 32 signed bytes: x = d q.
void DequantizeQ8_0(const std::byte* block, float* out) {
  const float d = Half(block);
  for (int64_t i = 0; i < kSmall; ++i) out[i] = Float(static_cast<int8_t>(block[2 + i])) * d;
}

// d, 32 nibbles: x = d (q - 8).
void DequantizeQ4_0(const std::byte* block, float* out) {
  const float d = Half(block);
  for (int64_t i = 0; i < kSmall; ++i) out[i] = d * Float(Nibble(block + 2, i) - 8);
}

// d, m, 32 nibbles: x = d q + m.
void DequantizeQ4_1(const std::byte* block, float* out) {
  const float d = Half(block), m = Half(block + 2);
  for (int64_t i = 0; i < kSmall; ++i) out[i] = d * Float(Nibble(block + 4, i)) + m;
}

// d, 32 fifth bits, 32 nibbles: x = d (q - 16).
void DequantizeQ5_0(const std::byte* block, float* out) {
  const float d = Half(block);
  for (int64_t i = 0; i < kSmall; ++i) {
    const int q = Nibble(block + 6, i) | Bit(block + 2, i) << 4;
    out[i] = d * Float(q - 16);
  }
}

// d, m, 32 fifth bits, 32 nibbles: x = d q + m.
void DequantizeQ5_1(const std::byte* block, float* out) {
  const float d = Half(block), m = Half(block + 2);
  for (int64_t i = 0; i < kSmall; ++i) {
    const int q = Nibble(block + 8, i) | Bit(block + 4, i) << 4;
    out[i] = d * Float(q) + m;
  }
}

// Two bits of element i: 32 bytes hold elements i, i + 32, i + 64, i + 96, from the low end.
int TwoBits(const std::byte* at, int64_t i) {
  return Byte(at + i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
}

// 16 scale-and-minimum pairs of nibbles, 64 bytes of two bits, d, dmin; a pair for 16 elements:
// x = (d scale) q - dmin minimum.
void DequantizeQ2_K(const std::byte* block, float* out) {
  const float d = Half(block + 80), dmin = Half(block + 82);
  for (int64_t i = 0; i < kSuper; ++i) {
    const uint8_t pair = Byte(block + i / 16);
    const float scale = d * Float(pair & 15), minimum = dmin * Float(pair >> 4);
    out[i] = scale * Float(TwoBits(block + 16, i)) - minimum;
  }
}

// 32 bytes of high bits, 64 bytes of two bits, 16 six-bit scales in 12 bytes, d:
// x = d (scale - 32) (q - 4 unless the high bit is set).
void DequantizeQ3_K(const std::byte* block, float* out) {
  const std::byte* scales = block + 96;
  const float d = Half(block + 108);
  for (int64_t i = 0; i < kSuper; ++i) {
    const int64_t j = i / 16;
    const int low = j < 8 ? Byte(scales + j) & 15 : Byte(scales + j - 8) >> 4;
    const int high = Byte(scales + 8 + j % 4) >> (j / 4 * 2) & 3;
    const float scale = d * Float((low | high << 4) - 32);
    const int set = Byte(block + i % 32) >> (i / 32) & 1;
    out[i] = scale * Float(TwoBits(block + 32, i) - (set != 0 ? 0 : 4));
  }
}

// Six-bit scales and minima of Q4_K and Q5_K: eight of each in 12 bytes.
struct ScaleMin {
  int scale, minimum;
};
ScaleMin ScaleMinOf(const std::byte* at, int64_t j) {
  if (j < 4) return {Byte(at + j) & 63, Byte(at + j + 4) & 63};
  const uint8_t rest = Byte(at + j + 4);
  return {(rest & 15) | (Byte(at + j - 4) >> 6) << 4, (rest >> 4) | (Byte(at + j) >> 6) << 4};
}

// Element i of 256 nibbles in runs of 64: the low ones of 32 bytes first, then the high ones.
int WideNibble(const std::byte* at, int64_t i) {
  const uint8_t pair = Byte(at + i / 64 * 32 + i % 32);
  return i % 64 < 32 ? pair & 15 : pair >> 4;
}

// d, dmin, scales and minima (one of each for 32 elements), 256 nibbles:
// x = (d scale) q - dmin minimum.
void DequantizeQ4_K(const std::byte* block, float* out) {
  const float d = Half(block), dmin = Half(block + 2);
  for (int64_t i = 0; i < kSuper; ++i) {
    const ScaleMin s = ScaleMinOf(block + 4, i / 32);
    out[i] = d * Float(s.scale) * Float(WideNibble(block + 16, i)) - dmin * Float(s.minimum);
  }
}

// As Q4_K with 32 bytes of fifth bits before the nibbles; bit j of byte i is element 32 j + i.
void DequantizeQ5_K(const std::byte* block, float* out) {
  const float d = Half(block), dmin = Half(block + 2);
  for (int64_t i = 0; i < kSuper; ++i) {
    const ScaleMin s = ScaleMinOf(block + 4, i / 32);
    const int fifth = Byte(block + 16 + i % 32) >> (i / 32) & 1;
    const int q = WideNibble(block + 48, i) | fifth << 4;
    out[i] = d * Float(s.scale) * Float(q) - dmin * Float(s.minimum);
  }
}

// 128 bytes of nibbles (in runs of 128: the low ones of 64 bytes first), 64 bytes of two high bits,
// 16 signed scales, d: x = (d scale) (q - 32).
void DequantizeQ6_K(const std::byte* block, float* out) {
  const float d = Half(block + 208);
  for (int64_t i = 0; i < kSuper; ++i) {
    const uint8_t pair = Byte(block + i / 128 * 64 + i % 64);
    const int low = i % 128 < 64 ? pair & 15 : pair >> 4;
    const int q = low | TwoBits(block + 128, i) << 4;
    const float scale = d * Float(static_cast<int8_t>(block[192 + i / 16]));
    out[i] = scale * Float(q - 32);
  }
}

struct Type {
  const char* name;
  GgufBlock block;
  void (*dequantize)(const std::byte* block, float* out);  // null = ConvertToFloat32
};

constexpr Type kTypes[] = {{"F32", {1, 4}, nullptr},
                           {"F16", {1, 2}, nullptr},
                           {"BF16", {1, 2}, nullptr},
                           {"Q4_0", {kSmall, 18}, DequantizeQ4_0},
                           {"Q4_1", {kSmall, 20}, DequantizeQ4_1},
                           {"Q5_0", {kSmall, 22}, DequantizeQ5_0},
                           {"Q5_1", {kSmall, 24}, DequantizeQ5_1},
                           {"Q8_0", {kSmall, 34}, DequantizeQ8_0},
                           {"Q2_K", {kSuper, 84}, DequantizeQ2_K},
                           {"Q3_K", {kSuper, 110}, DequantizeQ3_K},
                           {"Q4_K", {kSuper, 144}, DequantizeQ4_K},
                           {"Q5_K", {kSuper, 176}, DequantizeQ5_K},
                           {"Q6_K", {kSuper, 210}, DequantizeQ6_K}};

const Type* Find(const std::string& name) {
  for (const Type& type : kTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

}  // namespace

std::string GgufTypeName(uint32_t type) {
  static constexpr const char* kNames[] = {
      "F32",     "F16",    "Q4_0",    "Q4_1",  nullptr,  nullptr, "Q5_0",  "Q5_1",
      "Q8_0",    "Q8_1",   "Q2_K",    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K",  "Q8_K",
      "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
      "I8",      "I16",    "I32",     "I64",   "F64",    "IQ1_M", "BF16"};
  if (type < std::size(kNames) && kNames[type] != nullptr) return kNames[type];
  return absl::StrCat("type ", type);
}

GgufBlock GgufBlockOf(const std::string& type) {
  const Type* found = Find(type);
  return found == nullptr ? GgufBlock{} : found->block;
}

std::string SupportedGgufTypes() {
  std::string names;
  for (const Type& type : kTypes) absl::StrAppend(&names, names.empty() ? "" : ", ", type.name);
  return names;
}

absl::Status Dequantize(const GgufTensor& tensor, absl::Span<float> out) {
  const Type* type = Find(tensor.type);
  if (type == nullptr) {
    return absl::UnimplementedError(absl::StrCat(
        "tensor type ", tensor.type, " is not supported (of ", SupportedGgufTypes(), ")"));
  }
  const GgufBlock block = type->block;
  if (tensor.bytes.size() / block.bytes * block.elements != out.size()) {
    return absl::InvalidArgumentError(absl::StrCat(tensor.bytes.size(), " bytes of ", tensor.type,
                                                   " for ", out.size(), " places"));
  }
  if (type->dequantize == nullptr) {
    return ConvertToFloat32({tensor.type, tensor.shape, tensor.bytes}, out);
  }
  const std::byte* at = tensor.bytes.data();
  for (size_t i = 0; i < out.size(); i += block.elements, at += block.bytes) {
    type->dequantize(at, out.data() + i);
  }
  return absl::OkStatus();
}

}  // namespace millrace
