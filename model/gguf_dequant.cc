// Compiled with -ffp-contract=off: a fused multiply-add would round Q4_1 differently.
#include "model/gguf_dequant.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "model/safetensors.h"

namespace millrace {
namespace {

constexpr int64_t kBlockElements = 32;

float Half(const std::byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return HalfToFloat(bits);
}

// Scale and 32 signed bytes: x = d q.
void DequantizeQ8_0(const std::byte* block, float* out) {
  const float d = Half(block);
  for (int64_t i = 0; i < kBlockElements; ++i) {
    out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
  }
}

// Scale, minimum and 32 nibbles, the low ones first: x = d q + m.
void DequantizeQ4_1(const std::byte* block, float* out) {
  const float d = Half(block), m = Half(block + 2);
  for (int64_t i = 0; i < kBlockElements / 2; ++i) {
    const uint8_t pair = static_cast<uint8_t>(block[4 + i]);
    out[i] = d * static_cast<float>(pair & 15) + m;
    out[i + kBlockElements / 2] = d * static_cast<float>(pair >> 4) + m;
  }
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
  if (type == "F32") return {1, 4};
  if (type == "F16") return {1, 2};
  if (type == "Q8_0") return {kBlockElements, 34};
  if (type == "Q4_1") return {kBlockElements, 20};
  return {};
}

absl::Status Dequantize(const GgufTensor& tensor, absl::Span<float> out) {
  const GgufBlock block = GgufBlockOf(tensor.type);
  if (block.elements == 0) {
    return absl::UnimplementedError(
        absl::StrCat("tensor type ", tensor.type, " is not supported (of F32, F16, Q8_0, Q4_1)"));
  }
  if (tensor.bytes.size() / block.bytes * block.elements != out.size()) {
    return absl::InvalidArgumentError(absl::StrCat(tensor.bytes.size(), " bytes of ", tensor.type,
                                                   " for ", out.size(), " places"));
  }
  if (block.elements == 1) return ConvertToFloat32({tensor.type, tensor.shape, tensor.bytes}, out);
  const auto dequantize = tensor.type == "Q8_0" ? DequantizeQ8_0 : DequantizeQ4_1;
  const std::byte* at = tensor.bytes.data();
  for (size_t i = 0; i < out.size(); i += kBlockElements, at += block.bytes) {
    dequantize(at, out.data() + i);
  }
  return absl::OkStatus();
}

}  // namespace millrace
