#include "model/gguf_reader.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "model/gguf_dequant.h"

namespace millrace {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kArray = 9;
constexpr uint32_t kString = 8;

absl::Status Broken(const std::string& what) { return absl::InvalidArgumentError(what); }

// A position in the file; reads fail instead of leaving it.
class Cursor {
 public:
  explicit Cursor(absl::Span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t left() const { return bytes_.size() - at_; }
  uint64_t at() const { return at_; }

  template <typename T>
  absl::Status Read(T* out) {
    if (left() < sizeof(T)) {
      return Broken(absl::StrCat("ends at byte ", bytes_.size(), ", inside its header"));
    }
    std::memcpy(out, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return absl::OkStatus();
  }
  absl::Status Read(std::string* out) {
    uint64_t length = 0;
    MR_RETURN_IF_ERROR(Read(&length));
    if (length > left()) {
      return Broken(
          absl::StrCat("a string of ", length, " bytes at byte ", at_, ", ", left(), " are left"));
    }
    out->assign(reinterpret_cast<const char*>(bytes_.data()) + at_, length);
    at_ += length;
    return absl::OkStatus();
  }

 private:
  absl::Span<const std::byte> bytes_;
  uint64_t at_ = 0;
};

// Bytes of a scalar kind; a string takes at least its length field. 0 = unknown.
uint64_t KindSize(uint32_t kind) {
  static constexpr uint64_t kSizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};
  return kind < std::size(kSizes) ? kSizes[kind] : 0;
}

bool IsFloat(uint32_t kind) { return kind == 6 || kind == 12; }

template <typename T, typename To>
absl::Status ReadAs(Cursor* cursor, To* out) {
  T value{};
  MR_RETURN_IF_ERROR(cursor->Read(&value));
  *out = static_cast<To>(value);
  return absl::OkStatus();
}

absl::Status ReadInteger(Cursor* cursor, uint32_t kind, int64_t* out) {
  switch (kind) {
    case 0:
    case 7:
      return ReadAs<uint8_t>(cursor, out);
    case 1:
      return ReadAs<int8_t>(cursor, out);
    case 2:
      return ReadAs<uint16_t>(cursor, out);
    case 3:
      return ReadAs<int16_t>(cursor, out);
    case 4:
      return ReadAs<uint32_t>(cursor, out);
    case 5:
      return ReadAs<int32_t>(cursor, out);
    default:
      return ReadAs<int64_t>(cursor, out);
  }
}

absl::Status ReadFloat(Cursor* cursor, uint32_t kind, double* out) {
  return kind == 6 ? ReadAs<float>(cursor, out) : ReadAs<double>(cursor, out);
}

absl::StatusOr<GgufValue> ReadArray(Cursor* cursor) {
  uint32_t kind = 0;
  uint64_t count = 0;
  MR_RETURN_IF_ERROR(cursor->Read(&kind));
  MR_RETURN_IF_ERROR(cursor->Read(&count));
  if (KindSize(kind) == 0) return Broken(absl::StrCat("an array of kind ", kind));
  if (count > cursor->left() / KindSize(kind)) {
    return Broken(
        absl::StrCat("an array of ", count, " entries, ", cursor->left(), " bytes are left"));
  }
  if (kind == kString) {
    std::vector<std::string> list(count);
    for (std::string& entry : list) MR_RETURN_IF_ERROR(cursor->Read(&entry));
    return list;
  }
  if (IsFloat(kind)) {
    std::vector<double> list(count);
    for (double& entry : list) MR_RETURN_IF_ERROR(ReadFloat(cursor, kind, &entry));
    return list;
  }
  std::vector<int64_t> list(count);
  for (int64_t& entry : list) MR_RETURN_IF_ERROR(ReadInteger(cursor, kind, &entry));
  return list;
}

absl::StatusOr<GgufValue> ReadValue(Cursor* cursor) {
  uint32_t kind = 0;
  MR_RETURN_IF_ERROR(cursor->Read(&kind));
  if (kind == kArray) return ReadArray(cursor);
  if (KindSize(kind) == 0) return Broken(absl::StrCat("a value of kind ", kind));
  if (kind == kString) {
    std::string text;
    MR_RETURN_IF_ERROR(cursor->Read(&text));
    return text;
  }
  if (IsFloat(kind)) {
    double value = 0;
    MR_RETURN_IF_ERROR(ReadFloat(cursor, kind, &value));
    return value;
  }
  int64_t value = 0;
  MR_RETURN_IF_ERROR(ReadInteger(cursor, kind, &value));
  return value;
}

struct TensorInfo {
  std::string name;
  GgufTensor tensor;
  uint64_t offset = 0;
  uint64_t size = 0;  // bytes; 0 for a type of unknown size
};

absl::StatusOr<TensorInfo> ReadTensorInfo(Cursor* cursor) {
  TensorInfo info;
  MR_RETURN_IF_ERROR(cursor->Read(&info.name));
  const auto bad = [&](const std::string& what) {
    return Broken(absl::StrCat("tensor \"", info.name, "\": ", what));
  };
  uint32_t dims = 0;
  MR_RETURN_IF_ERROR(cursor->Read(&dims));
  if (dims < 1 || dims > 4) return bad(absl::StrCat(dims, " dimensions"));
  uint64_t elements = 1;
  for (uint32_t i = 0; i < dims; ++i) {
    uint64_t dim = 0;
    MR_RETURN_IF_ERROR(cursor->Read(&dim));
    if (dim == 0 || __builtin_mul_overflow(elements, dim, &elements) ||
        elements > std::numeric_limits<int64_t>::max() / 8) {
      return bad(absl::StrCat("dimension ", i, " of ", dim, " is impossible"));
    }
    // The file has the innermost dimension first.
    info.tensor.shape.insert(info.tensor.shape.begin(), static_cast<int64_t>(dim));
  }
  uint32_t type = 0;
  MR_RETURN_IF_ERROR(cursor->Read(&type));
  MR_RETURN_IF_ERROR(cursor->Read(&info.offset));
  info.tensor.type = GgufTypeName(type);
  const GgufBlock block = GgufBlockOf(info.tensor.type);
  if (block.elements == 0) return info;
  if (info.tensor.shape.back() % block.elements != 0) {
    return bad(absl::StrCat("rows of ", info.tensor.shape.back(), " elements are not whole ",
                            info.tensor.type, " blocks"));
  }
  info.size = elements / block.elements * block.bytes;
  return info;
}

struct Header {
  uint64_t tensors = 0;
  uint64_t values = 0;
};

absl::StatusOr<Header> ReadHeader(Cursor* cursor) {
  uint32_t magic = 0, version = 0;
  Header header;
  MR_RETURN_IF_ERROR(cursor->Read(&magic));
  if (magic != kMagic) return Broken("is not a GGUF file");
  MR_RETURN_IF_ERROR(cursor->Read(&version));
  if (version != 2 && version != 3) {
    return absl::UnimplementedError(absl::StrCat("GGUF version ", version, " (of 2, 3)"));
  }
  MR_RETURN_IF_ERROR(cursor->Read(&header.tensors));
  MR_RETURN_IF_ERROR(cursor->Read(&header.values));
  // A tensor entry takes at least 32 bytes, a value 13.
  if (header.tensors > cursor->left() / 32 || header.values > cursor->left() / 13) {
    return Broken(absl::StrCat("claims ", header.tensors, " tensors and ", header.values,
                               " values in ", cursor->left(), " bytes"));
  }
  return header;
}

absl::Status Parse(absl::Span<const std::byte> bytes, std::map<std::string, GgufValue>* metadata,
                   std::map<std::string, GgufTensor>* tensors) {
  Cursor cursor(bytes);
  MR_ASSIGN_OR_RETURN(const Header header, ReadHeader(&cursor));
  for (uint64_t i = 0; i < header.values; ++i) {
    std::string key;
    MR_RETURN_IF_ERROR(cursor.Read(&key));
    auto value = ReadValue(&cursor);
    if (!value.ok()) {
      return Broken(absl::StrCat("value \"", key, "\": ", value.status().message()));
    }
    if (!metadata->emplace(key, *std::move(value)).second) {
      return Broken(absl::StrCat("value \"", key, "\" stands twice"));
    }
  }
  std::vector<TensorInfo> infos;
  for (uint64_t i = 0; i < header.tensors; ++i) {
    MR_ASSIGN_OR_RETURN(TensorInfo info, ReadTensorInfo(&cursor));
    infos.push_back(std::move(info));
  }
  int64_t alignment = 32;
  if (const auto it = metadata->find("general.alignment"); it != metadata->end()) {
    const int64_t* value = std::get_if<int64_t>(&it->second);
    if (value == nullptr || *value < 1 || *value > 1 << 20) return Broken("general.alignment");
    alignment = *value;
  }
  const uint64_t begin = (cursor.at() + alignment - 1) / alignment * alignment;
  const uint64_t data_bytes = begin > bytes.size() ? 0 : bytes.size() - begin;
  for (TensorInfo& info : infos) {
    if (info.offset > data_bytes || info.size > data_bytes - info.offset) {
      return Broken(absl::StrCat("tensor \"", info.name, "\" at ", info.offset, " with ", info.size,
                                 " bytes leaves the file's ", data_bytes, " data bytes"));
    }
    if (info.size > 0) info.tensor.bytes = bytes.subspan(begin + info.offset, info.size);
    if (!tensors->emplace(info.name, std::move(info.tensor)).second) {
      return Broken(absl::StrCat("tensor \"", info.name, "\" stands twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

namespace {

constexpr int64_t kMaxParts = 1000;

// NAME-00002-of-00003.gguf
std::string PartPath(absl::string_view prefix, int64_t part, int64_t count) {
  return absl::StrFormat("%s-%05d-of-%05d.gguf", prefix, part, count);
}

}  // namespace

absl::StatusOr<GgufReader::PartNumber> GgufReader::AddFile(const std::string& path) {
  MR_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  std::map<std::string, GgufValue> metadata;
  std::map<std::string, GgufTensor> tensors;
  const auto named = [&](const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  };
  if (absl::Status status = Parse(file.bytes(), &metadata, &tensors); !status.ok()) {
    return named(status);
  }
  for (auto& [name, tensor] : tensors) {
    if (!tensors_.emplace(name, std::move(tensor)).second) {
      return named(Broken(absl::StrCat("tensor \"", name, "\" stands in an earlier part too")));
    }
  }
  const auto integer = [&](const char* key, int64_t fallback) {
    const auto it = metadata.find(key);
    const int64_t* value = it == metadata.end() ? nullptr : std::get_if<int64_t>(&it->second);
    return value == nullptr ? fallback : *value;
  };
  const PartNumber number = {integer("split.no", 0), integer("split.count", 1)};
  // The first part has the model's values; what later ones repeat doesn't count.
  for (auto& [key, value] : metadata) metadata_.emplace(key, std::move(value));
  files_.push_back(std::move(file));
  return number;
}

absl::Status GgufReader::AddParts(const std::string& path, int64_t count) {
  const size_t suffix = PartPath("", 1, count).size();
  if (count > kMaxParts || path.size() < suffix ||
      !absl::EndsWith(path, absl::StrFormat("-of-%05d.gguf", count))) {
    return Broken(absl::StrCat(path, ": is one of ", count,
                               " parts, but not called NAME-00001-of-0000N.gguf as they are"));
  }
  for (int64_t part = 1; part <= count; ++part) {
    const std::string file =
        PartPath(absl::string_view(path).substr(0, path.size() - suffix), part, count);
    MR_ASSIGN_OR_RETURN(const PartNumber number, AddFile(file));
    if (number.index != part - 1 || number.count != count) {
      return Broken(
          absl::StrCat(file, ": says that it is part ", number.index + 1, " of ", number.count));
    }
  }
  const int64_t tensors = Get<int64_t>("split.tensors.count").value_or(-1);
  if (tensors >= 0 && tensors != static_cast<int64_t>(tensors_.size())) {
    return Broken(
        absl::StrCat(path, ": the parts hold ", tensors_.size(), " tensors, expected ", tensors));
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufReader> GgufReader::Open(const std::string& path) {
  GgufReader reader;
  MR_ASSIGN_OR_RETURN(const PartNumber number, reader.AddFile(path));
  if (number.count <= 1) return reader;
  GgufReader whole;
  MR_RETURN_IF_ERROR(whole.AddParts(path, number.count));
  return whole;
}

uint64_t GgufReader::file_bytes() const {
  uint64_t bytes = 0;
  for (const MappedFile& file : files_) bytes += file.bytes().size();
  return bytes;
}

}  // namespace millrace
