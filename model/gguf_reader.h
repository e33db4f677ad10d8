// GGUF files (llama.cpp's model format, versions 2 and 3, little-endian), read by memory map. Every
// count, length and offset is checked against the file before it is used. Thread-safe (const).
#ifndef MILLRACE_MODEL_GGUF_READER_H_
#define MILLRACE_MODEL_GGUF_READER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/files.h"

namespace millrace {

// Integers and booleans of any width are int64_t, both float widths double.
using GgufValue = std::variant<int64_t, double, std::string, std::vector<int64_t>,
                               std::vector<double>, std::vector<std::string>>;

struct GgufTensor {
  std::string type;                   // F32, F16, Q8_0, Q4_1, ...
  std::vector<int64_t> shape;         // outermost first, as Hugging Face has it
  absl::Span<const std::byte> bytes;  // into the map
};

class GgufReader {
 public:
  // Any part of a split model (NAME-00001-of-00003.gguf) stands for all of them, which must lie
  // beside it. INVALID_ARGUMENT names what is broken and where; NOT_FOUND a missing part;
  // UNIMPLEMENTED an unknown version. A tensor type that can't be dequantised is listed, with empty
  // bytes: whoever wants its values refuses it.
  static absl::StatusOr<GgufReader> Open(const std::string& path);

  const std::map<std::string, GgufValue>& metadata() const { return metadata_; }
  const std::map<std::string, GgufTensor>& tensors() const { return tensors_; }
  const std::vector<MappedFile>& files() const { return files_; }  // one, or the parts in order
  uint64_t file_bytes() const;                                     // of all of them
  // The tensor's pages leave this process's memory until they are looked at again.
  void Release(const GgufTensor& tensor) const {
    if (!files_.empty()) files_[0].Release(tensor.bytes);
  }

  // nullopt when the key is absent or of another kind.
  template <typename T>
  std::optional<T> Get(const std::string& key) const {
    const auto it = metadata_.find(key);
    if (it == metadata_.end()) return std::nullopt;
    const T* value = std::get_if<T>(&it->second);
    return value == nullptr ? std::nullopt : std::optional<T>(*value);
  }

 private:
  struct PartNumber {
    int64_t index = 0;  // from 0
    int64_t count = 1;
  };
  absl::StatusOr<PartNumber> AddFile(const std::string& path);
  absl::Status AddParts(const std::string& path, int64_t count);
  std::vector<MappedFile> files_;
  std::map<std::string, GgufValue> metadata_;
  std::map<std::string, GgufTensor> tensors_;
};

}  // namespace millrace

#endif  // MILLRACE_MODEL_GGUF_READER_H_
