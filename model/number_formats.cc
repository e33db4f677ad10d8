// The number formats of checkpoint files and fp32: declared in safetensors.h.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "model/safetensors.h"

namespace millrace {
namespace {

float Bfloat16ToFloat(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// HalfToFloat without a branch, for loops that compilers turn into vector code: exponent and
// mantissa move to where a float has them, and the bias is corrected; for subnormal numbers by the
// subtraction that makes them normal ones.
inline float HalfToFloatBranchless(uint16_t half) {
  constexpr uint32_t kExponent = 0x7c00u << 13, kBias = (127u - 15) << 23;
  constexpr uint32_t kSmallestNormal = 113u << 23;
  const uint32_t moved = static_cast<uint32_t>(half & 0x7fff) << 13;
  const uint32_t exponent = moved & kExponent;
  uint32_t bits = moved + kBias + (exponent == kExponent ? kBias : 0u);
  const uint32_t raised = bits + (1u << 23);
  float small, smallest_normal;
  std::memcpy(&small, &raised, sizeof(small));
  std::memcpy(&smallest_normal, &kSmallestNormal, sizeof(smallest_normal));
  small -= smallest_normal;
  uint32_t small_bits;
  std::memcpy(&small_bits, &small, sizeof(small_bits));
  bits = exponent == 0 ? small_bits : bits;
  bits |= static_cast<uint32_t>(half & 0x8000) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// A block at a time is set aside before its floats are written, since these may lie where it was.
template <typename ToFloat>
void ConvertAll(const std::byte* in, size_t count, float* out, const ToFloat& to_float) {
  constexpr size_t kBlock = 32;
  uint16_t block[kBlock];
  size_t at = 0;
  for (; at + kBlock <= count; at += kBlock) {
    std::memcpy(block, in + at * sizeof(uint16_t), sizeof(block));
    for (size_t i = 0; i < kBlock; ++i) out[at + i] = to_float(block[i]);
  }
  for (; at < count; ++at) {
    std::memcpy(block, in + at * sizeof(uint16_t), sizeof(uint16_t));
    out[at] = to_float(block[0]);
  }
}

}  // namespace

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 0x1f;
  uint32_t mantissa = half & 0x3ff;
  uint32_t bits;
  if (exponent == 0x1f) {
    bits = sign | 0x7f800000 | (mantissa << 13);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else if (mantissa == 0) {
    bits = sign;
  } else {
    uint32_t shift = 0;
    while ((mantissa & 0x400) == 0) {
      mantissa <<= 1;
      ++shift;
    }
    bits = sign | ((113 - shift) << 23) | ((mantissa & 0x3ff) << 13);
  }
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint16_t FloatToHalf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = bits >> 16 & 0x8000;
  const int32_t exponent = static_cast<int32_t>(bits >> 23 & 0xff) - 112;
  uint32_t mantissa = bits & 0x7fffff;
  if (exponent == 143) return sign | 0x7c00 | (mantissa != 0 ? 0x200 | mantissa >> 13 : 0);
  if (exponent >= 31) return sign | 0x7c00;
  if (exponent < -10) return sign;
  uint32_t shift = 13, base = static_cast<uint32_t>(exponent) << 10;
  if (exponent <= 0) {
    mantissa |= 0x800000;
    shift = 14 - exponent;
    base = 0;
  }
  const uint32_t half_way = 1u << (shift - 1), rest = mantissa & ((1u << shift) - 1);
  uint32_t result = base + (mantissa >> shift);
  // A carry into the exponent is the right result, up to infinity.
  if (rest > half_way || (rest == half_way && (result & 1) != 0)) ++result;
  return sign | result;
}

uint16_t FloatToBfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 0x40;  // stay a NaN
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

absl::Status ConvertToFloat32(const TensorView& tensor, absl::Span<float> out) {
  const int64_t element = DtypeSize(tensor.dtype);
  if (tensor.dtype != "F32" && tensor.dtype != "BF16" && tensor.dtype != "F16") {
    return absl::UnimplementedError(
        absl::StrCat("dtype ", tensor.dtype, " can't be read as float32 (of F32, BF16, F16)"));
  }
  if (tensor.bytes.size() != out.size() * element) {
    return absl::InvalidArgumentError(absl::StrCat("a tensor of ", tensor.bytes.size() / element,
                                                   " elements for ", out.size(), " places"));
  }
  if (tensor.dtype == "F32") {
    std::memcpy(out.data(), tensor.bytes.data(), tensor.bytes.size());
    return absl::OkStatus();
  }
  if (tensor.dtype == "F16") {
    ConvertAll(tensor.bytes.data(), out.size(), out.data(),
               [](uint16_t bits) { return HalfToFloatBranchless(bits); });
  } else {
    ConvertAll(tensor.bytes.data(), out.size(), out.data(),
               [](uint16_t bits) { return Bfloat16ToFloat(bits); });
  }
  return absl::OkStatus();
}

void ConvertFromFloat32(absl::Span<const float> values, const std::string& dtype, std::byte* out) {
  if (dtype == "F32") {
    std::memcpy(out, values.data(), values.size() * sizeof(float));
    return;
  }
  const bool half = dtype == "F16";
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = half ? FloatToHalf(values[i]) : FloatToBfloat16(values[i]);
    std::memcpy(out + 2 * i, &bits, sizeof(bits));
  }
}

}  // namespace millrace
