// Any bytes as a .safetensors file: it is refused, or every tensor it lists can be read.
#include <cstdlib>

#include "model/safetensors.h"
#include "tests/fuzz/fuzz_target.h"

namespace millrace::testing {
namespace {

std::string FileOf(const std::string& header, size_t data_bytes) {
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  return length + header + std::string(data_bytes, '\x3f');
}

void CheckTensor(const TensorView& view) {
  uint64_t elements = 1;
  for (int64_t dim : view.shape) elements *= static_cast<uint64_t>(dim);
  if (elements * DtypeSize(view.dtype) != view.bytes.size()) std::abort();
  std::vector<float> values(elements);
  ConvertToFloat32(view, absl::MakeSpan(values)).IgnoreError();
  // Every byte is there.
  unsigned sum = 0;
  for (std::byte b : view.bytes) sum += static_cast<unsigned>(b);
  volatile unsigned sink = sum;
  static_cast<void>(sink);
}

int FuzzSafetensors(const uint8_t* data, size_t size) {
  static FuzzFile* const file = new FuzzFile;
  const auto reader = SafetensorsReader::Open(file->Write(data, size));
  if (!reader.ok()) return 0;
  for (const auto& [name, view] : reader->tensors()) CheckTensor(view);
  return 0;
}

}  // namespace

FuzzTarget FuzzTargetOf() {
  return {&FuzzSafetensors,
          {FileOf("{}", 0), FileOf(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
           FileOf(R"({"__metadata__":{"format":"pt"},)"
                  R"("a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
                  R"("b":{"dtype":"F16","shape":[],"data_offsets":[12,14]},)"
                  R"("c":{"dtype":"I64","shape":[0,4],"data_offsets":[14,14]},)"
                  R"("d":{"dtype":"F32","shape":[1,1,2],"data_offsets":[14,22]}}   )",
                  22)},
          {"\"dtype\":", "\"shape\":", "\"data_offsets\":", "__metadata__", "F32", "BF16", "F16",
           "I64", "18446744073709551615", "9223372036854775808", "4294967296", "-1", "[[[[", "{}",
           "null", "1e308"}};
}

}  // namespace millrace::testing
