#include "model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "nlohmann/json.hpp"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference reader

// Parses the header; a repeated tensor name, which DOM parsing would drop silently, is an error.
absl::StatusOr<Json> ParseHeader(absl::string_view text, const std::string& path) {
  std::set<std::string> names;
  std::string repeated;
  const auto callback = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::key && depth == 1 &&
        !names.insert(parsed.get<std::string>()).second) {
      repeated = parsed.get<std::string>();
    }
    return true;
  };
  Json header = Json::parse(text.begin(), text.end(), callback, /*allow_exceptions=*/false);
  if (header.is_discarded() || !header.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": header is not a JSON object"));
  }
  if (!repeated.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": tensor \"", repeated, "\" stands twice in the header"));
  }
  return header;
}

struct Entry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

absl::StatusOr<Entry> ParseEntry(const std::string& name, const Json& json, uint64_t data_bytes) {
  const auto bad = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\": ", what));
  };
  if (!json.is_object() || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets")) {
    return bad("needs dtype, shape and data_offsets");
  }
  Entry entry;
  entry.name = name;
  if (!json["dtype"].is_string()) return bad("dtype is not a string");
  entry.dtype = json["dtype"].get<std::string>();
  const int64_t element = DtypeSize(entry.dtype);
  if (element == 0) return bad(absl::StrCat("dtype \"", entry.dtype, "\" is unknown"));
  if (!json["shape"].is_array()) return bad("shape is not a list");
  uint64_t bytes = element;
  for (const Json& dim : json["shape"]) {
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() > std::numeric_limits<int64_t>::max()) {
      return bad(absl::StrCat("shape ", json["shape"].dump(), " holds ", dim.dump()));
    }
    entry.shape.push_back(dim.get<int64_t>());
    if (__builtin_mul_overflow(bytes, dim.get<uint64_t>(), &bytes)) {
      return bad(absl::StrCat("shape ", json["shape"].dump(), " is too large"));
    }
  }
  const Json& offsets = json["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return bad(absl::StrCat("data_offsets ", offsets.dump(), " are not two byte positions"));
  }
  entry.begin = offsets[0].get<uint64_t>();
  entry.end = offsets[1].get<uint64_t>();
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return bad(absl::StrCat("data_offsets ", offsets.dump(), " leave the file's ", data_bytes,
                            " data bytes"));
  }
  if (entry.end - entry.begin != bytes) {
    return bad(absl::StrCat("data_offsets span ", entry.end - entry.begin, " bytes, ", entry.dtype,
                            " ", json["shape"].dump(), " needs ", bytes));
  }
  return entry;
}

absl::Status CheckLayout(std::vector<Entry>* entries, uint64_t data_bytes) {
  std::sort(entries->begin(), entries->end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t at = 0;
  for (const Entry& entry : *entries) {
    if (entry.begin != at) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor \"", entry.name, "\" begins at ", entry.begin,
          entry.begin < at ? ", inside" : ", not after", " the one that ends at ", at));
    }
    at = entry.end;
  }
  if (at != data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensors end at byte ", at, " of ", data_bytes, " data bytes"));
  }
  return absl::OkStatus();
}

// What a folder without safetensors is told.
absl::Status NoWeights(const std::string& dir) {
  const bool pickled = FileExists(JoinPath(dir, "pytorch_model.bin")) ||
                       FileExists(JoinPath(dir, "pytorch_model.bin.index.json"));
  return absl::NotFoundError(
      absl::StrCat(dir, ": neither model.safetensors nor model.safetensors.index.json",
                   pickled ? "; pytorch_model.bin is not read (transformers' save_pretrained makes "
                             "safetensors of it)"
                           : ""));
}

uint64_t SpecBytes(const TensorSpec& spec) {
  uint64_t bytes = DtypeSize(spec.dtype);
  for (int64_t dim : spec.shape) bytes *= dim;
  return bytes;
}

}  // namespace

int64_t DtypeSize(const std::string& dtype) {
  static const std::map<std::string, int64_t>* const kSizes = new std::map<std::string, int64_t>{
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
      {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},
      {"I32", 4},  {"F32", 4}, {"U64", 8}, {"I64", 8},     {"F64", 8}};
  const auto it = kSizes->find(dtype);
  return it == kSizes->end() ? 0 : it->second;
}

SafetensorsReader::File::~File() { ::close(fd_); }

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(const std::string& path) {
  SafetensorsReader reader;
  reader.path_ = path;
  MR_ASSIGN_OR_RETURN(reader.file_, MappedFile::Open(path));
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return absl::InternalError(absl::StrCat("opening ", path, ": ", std::strerror(errno)));
  }
  reader.fd_ = std::make_unique<File>(fd);
  const absl::Span<const std::byte> bytes = reader.file_.bytes();
  if (bytes.size() < 8) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", bytes.size(), " bytes, too short for a safetensors header"));
  }
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | static_cast<uint8_t>(bytes[i]);
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes.size() - 8) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": header of ", header_bytes,
                                                   " bytes in a file of ", bytes.size(), " (limit ",
                                                   kMaxHeaderBytes, ")"));
  }
  MR_ASSIGN_OR_RETURN(
      const Json header,
      ParseHeader({reinterpret_cast<const char*>(bytes.data()) + 8, header_bytes}, path));
  const absl::Span<const std::byte> data = bytes.subspan(8 + header_bytes);
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) {
        return absl::InvalidArgumentError(absl::StrCat(path, ": __metadata__ is not an object"));
      }
      for (const auto& [key, text] : value.items()) {
        if (text.is_string()) reader.metadata_[key] = text.get<std::string>();
      }
      continue;
    }
    auto entry = ParseEntry(name, value, data.size());
    if (!entry.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", entry.status().message()));
    }
    entries.push_back(*std::move(entry));
  }
  if (absl::Status status = CheckLayout(&entries, data.size()); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.message()));
  }
  for (Entry& entry : entries) {
    reader.tensors_[entry.name] = {entry.dtype, std::move(entry.shape),
                                   data.subspan(entry.begin, entry.end - entry.begin)};
  }
  return reader;
}

absl::StatusOr<TensorView> SafetensorsReader::Get(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, ": no tensor \"", name, "\""));
  }
  return it->second;
}

absl::Status SafetensorsReader::Read(const TensorView& view, uint64_t offset,
                                     absl::Span<std::byte> out) const {
  if (offset > view.bytes.size() || out.size() > view.bytes.size() - offset) {
    return absl::OutOfRangeError(absl::StrCat(path_, ": bytes ", offset, " to ",
                                              offset + out.size(), " of a tensor of ",
                                              view.bytes.size()));
  }
  const auto begin = static_cast<uint64_t>(view.bytes.data() - file_.bytes().data()) + offset;
  for (size_t done = 0; done < out.size();) {
    const ssize_t n =
        ::pread(fd_->fd(), out.data() + done, out.size() - done, static_cast<off_t>(begin + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return absl::InternalError(absl::StrCat("reading ", path_, ": ", std::strerror(errno)));
    }
    if (n == 0) {
      return absl::DataLossError(absl::StrCat(path_, ": ends at byte ", begin + done, ", had ",
                                              file_.bytes().size(), " when it was opened"));
    }
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointReader> CheckpointReader::Open(const std::string& dir) {
  CheckpointReader reader;
  reader.dir_ = dir;
  const std::string whole = JoinPath(dir, "model.safetensors");
  if (FileExists(whole)) {
    MR_ASSIGN_OR_RETURN(SafetensorsReader file, SafetensorsReader::Open(whole));
    for (const auto& [name, tensor] : file.tensors()) reader.where_[name] = 0;
    reader.files_.push_back(std::move(file));
    return reader;
  }
  const std::string index_path = JoinPath(dir, "model.safetensors.index.json");
  if (!FileExists(index_path)) return NoWeights(dir);
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFile(index_path));
  const Json index = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(index_path, ": no \"weight_map\""));
  }
  std::map<std::string, size_t> opened;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    if (!shard.is_string() || shard.get<std::string>().find('/') != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(index_path, ": \"", name, "\" names no file of this folder"));
    }
    const std::string file_name = shard.get<std::string>();
    if (!opened.contains(file_name)) {
      absl::StatusOr<SafetensorsReader> file = SafetensorsReader::Open(JoinPath(dir, file_name));
      if (!file.ok()) {
        return absl::Status(file.status().code(), absl::StrCat(index_path, " names ", file_name,
                                                               ": ", file.status().message()));
      }
      opened[file_name] = reader.files_.size();
      reader.files_.push_back(*std::move(file));
    }
    MR_RETURN_IF_ERROR(reader.files_[opened[file_name]].Get(name).status());
    reader.where_[name] = opened[file_name];
  }
  size_t held = 0;
  for (const SafetensorsReader& file : reader.files_) held += file.tensors().size();
  if (held != reader.where_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(index_path, ": lists ", reader.where_.size(),
                                                   " tensors, its shards hold ", held));
  }
  return reader;
}

absl::StatusOr<TensorView> CheckpointReader::Get(const std::string& name) const {
  const auto it = where_.find(name);
  if (it == where_.end())
    return absl::NotFoundError(absl::StrCat(dir_, ": no tensor \"", name, "\""));
  return files_[it->second].Get(name);
}

absl::Status CheckpointReader::Read(const std::string& name, uint64_t offset,
                                    absl::Span<std::byte> out) const {
  const auto it = where_.find(name);
  if (it == where_.end()) {
    return absl::NotFoundError(absl::StrCat(dir_, ": no tensor \"", name, "\""));
  }
  const SafetensorsReader& file = files_[it->second];
  return file.Read(file.tensors().at(name), offset, out);
}

std::vector<std::string> CheckpointReader::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : where_) names.push_back(name);
  return names;
}

absl::Status WriteSafetensorsOneByOne(
    const std::string& path, const std::map<std::string, TensorSpec>& tensors,
    const std::function<absl::StatusOr<absl::Span<const std::byte>>(const std::string& name)>&
        bytes_of,
    const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  header["__metadata__"] = {{"format", "pt"}};
  for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  uint64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    const uint64_t bytes = SpecBytes(tensor);
    header[name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  return WriteFileInPieces(path, [&](const FilePieceSink& sink) -> absl::Status {
    MR_RETURN_IF_ERROR(sink(length));
    MR_RETURN_IF_ERROR(sink(text));
    for (const auto& [name, tensor] : tensors) {
      MR_ASSIGN_OR_RETURN(const absl::Span<const std::byte> bytes, bytes_of(name));
      if (bytes.size() != SpecBytes(tensor) || DtypeSize(tensor.dtype) == 0) {
        return absl::InvalidArgumentError(absl::StrCat(path, ": tensor \"", name, "\" has ",
                                                       bytes.size(), " bytes, ", tensor.dtype,
                                                       " of its shape needs ", SpecBytes(tensor)));
      }
      MR_RETURN_IF_ERROR(sink({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
    }
    return absl::OkStatus();
  });
}

absl::Status WriteSafetensors(const std::string& path,
                              const std::map<std::string, TensorView>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::map<std::string, TensorSpec> specs;
  for (const auto& [name, tensor] : tensors) specs[name] = {tensor.dtype, tensor.shape};
  return WriteSafetensorsOneByOne(
      path, specs,
      [&](const std::string& name) -> absl::StatusOr<absl::Span<const std::byte>> {
        return tensors.at(name).bytes;
      },
      metadata);
}

}  // namespace millrace
