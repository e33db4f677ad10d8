// Values of GGUF tensors as float32: F32, F16, BF16, the 32-element types Q4_0, Q4_1, Q5_0, Q5_1,
// Q8_0, and the 256-element types Q2_K to Q6_K. Results equal those of the `gguf` Python package
// bit for bit. Pure functions.
#ifndef MILLRACE_MODEL_GGUF_DEQUANT_H_
#define MILLRACE_MODEL_GGUF_DEQUANT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "model/gguf_reader.h"

namespace millrace {

struct GgufBlock {
  int64_t elements = 0;  // 0 = a type that is not supported
  int64_t bytes = 0;
};
// Name of a ggml type number, "type 99" when unknown.
std::string GgufTypeName(uint32_t type);
GgufBlock GgufBlockOf(const std::string& type);
// "F32, F16, ...", for messages.
std::string SupportedGgufTypes();

// out has one place per element. UNIMPLEMENTED names the type and those supported.
absl::Status Dequantize(const GgufTensor& tensor, absl::Span<float> out);

}  // namespace millrace

#endif  // MILLRACE_MODEL_GGUF_DEQUANT_H_
