// safetensors files, read through a memory map or by copy, and written whole or not at all. No
// torch: bytes and shapes. Format: u64 little-endian header length, JSON header {name: {dtype,
// shape, data_offsets}}, data (huggingface/safetensors README).
#ifndef MILLRACE_MODEL_SAFETENSORS_H_
#define MILLRACE_MODEL_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/files.h"

namespace millrace {

struct TensorView {
  std::string dtype;  // F32, BF16, F16, I64, ...
  std::vector<int64_t> shape;
  absl::Span<const std::byte> bytes;  // into the map
};

class SafetensorsReader {
 public:
  // Every header entry is checked (offsets inside the file, no overlap or hole, size = shape x
  // dtype) before anything is served.
  static absl::StatusOr<SafetensorsReader> Open(const std::string& path);
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // NOT_FOUND names the tensor and the file.
  absl::StatusOr<TensorView> Get(const std::string& name) const;
  // Bytes [offset, offset + out.size()) of a tensor of tensors(), copied out of the file rather
  // than out of the map: nothing is mapped, so reading a file once from end to end costs less time
  // and no memory. DATA_LOSS when the file has become shorter.
  absl::Status Read(const TensorView& view, uint64_t offset, absl::Span<std::byte> out) const;
  absl::Span<const std::byte> file_bytes() const { return file_.bytes(); }

 private:
  // A descriptor that is closed in the end.
  class File {
   public:
    explicit File(int fd) : fd_(fd) {}
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    ~File();
    int fd() const { return fd_; }

   private:
    const int fd_;
  };

  std::string path_;
  std::unique_ptr<File> fd_;
  MappedFile file_;
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

// A model folder: model.safetensors, or the shards that model.safetensors.index.json names (all
// must be there; the error names one that isn't, and the index).
class CheckpointReader {
 public:
  static absl::StatusOr<CheckpointReader> Open(const std::string& dir);
  absl::StatusOr<TensorView> Get(const std::string& name) const;
  // See SafetensorsReader.
  absl::Status Read(const std::string& name, uint64_t offset, absl::Span<std::byte> out) const;
  std::vector<std::string> Names() const;
  const std::vector<SafetensorsReader>& files() const { return files_; }

 private:
  std::vector<SafetensorsReader> files_;
  std::map<std::string, size_t> where_;
  std::string dir_;
};

// Writes atomically, tensors in name order, header padded to 8 bytes, metadata {"format":"pt"} plus
// `metadata`.
absl::Status WriteSafetensors(const std::string& path,
                              const std::map<std::string, TensorView>& tensors,
                              const std::map<std::string, std::string>& metadata = {});

// What a tensor of a file to be written will be.
struct TensorSpec {
  std::string dtype;
  std::vector<int64_t> shape;
};
// The same with one tensor in memory at a time: `bytes_of` is called once for each, in name order,
// and its result is used up before the next call.
absl::Status WriteSafetensorsOneByOne(
    const std::string& path, const std::map<std::string, TensorSpec>& tensors,
    const std::function<absl::StatusOr<absl::Span<const std::byte>>(const std::string& name)>&
        bytes_of,
    const std::map<std::string, std::string>& metadata = {});

int64_t DtypeSize(const std::string& dtype);  // bytes; 0 = unknown
float HalfToFloat(uint16_t half);             // IEEE binary16, exact
uint16_t FloatToHalf(float value);            // round to nearest even
uint16_t FloatToBfloat16(float value);        // round to nearest even
// Converts n elements of F32/BF16/F16 to float32. The elements of the 16-bit formats may lie in the
// second half of `out` itself.
absl::Status ConvertToFloat32(const TensorView& tensor, absl::Span<float> out);
// n elements of F32, BF16 or F16 into `out`, which has the room.
void ConvertFromFloat32(absl::Span<const float> values, const std::string& dtype, std::byte* out);

}  // namespace millrace

#endif  // MILLRACE_MODEL_SAFETENSORS_H_
