// Any bytes as a GGUF file: it is refused, or every tensor it lists can be dequantised or is
// refused by its type.
#include <algorithm>

#include "model/gguf_dequant.h"
#include "model/gguf_reader.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/model/gguf_builder.h"

namespace millrace::testing {
namespace {

// A tensor of every type there is, each of one block.
std::string EveryType() {
  GgufBuilder b;
  b.String("general.architecture", "llama");
  b.Integer("llama.block_count", 2);
  b.Float("llama.rope.freq_base", 1e5f);
  b.Strings("tokenizer.ggml.tokens", {"a", "b"});
  b.Integers("tokenizer.ggml.token_type", {1, -3});
  for (uint32_t type = 0; type < 31; ++type) {
    const GgufBlock block = GgufBlockOf(GgufTypeName(type));
    if (block.elements == 0) continue;
    b.Tensor("t" + std::to_string(type), {static_cast<uint64_t>(block.elements)}, type,
             std::string(block.bytes, '\x5a'));
  }
  return b.File();
}

int FuzzGguf(const uint8_t* data, size_t size) {
  static FuzzFile* const file = new FuzzFile;
  const auto reader = GgufReader::Open(file->Write(data, size));
  if (!reader.ok()) return 0;
  for (const auto& [name, tensor] : reader->tensors()) {
    const GgufBlock block = GgufBlockOf(tensor.type);
    const size_t elements =
        block.bytes == 0 ? 1 : tensor.bytes.size() / block.bytes * block.elements;
    std::vector<float> values(elements);
    Dequantize(tensor, absl::MakeSpan(values)).IgnoreError();
  }
  return 0;
}

}  // namespace

FuzzTarget FuzzTargetOf() {
  return {&FuzzGguf,
          {GgufBuilder().File(), EveryType()},
          {"GGUF", "general.alignment", "general.architecture", std::string("\4\0\0\0", 4),
           std::string("\10\0\0\0", 4), std::string("\11\0\0\0", 4),
           std::string("\377\377\377\377\377\377\377\177", 8)}};
}

}  // namespace millrace::testing
