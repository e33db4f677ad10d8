#include "model/zip_member.h"

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/files.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

using Bytes = absl::Span<const std::byte>;

constexpr uint32_t kEndSignature = 0x06054b50, kCentralSignature = 0x02014b50,
                   kLocalSignature = 0x04034b50;
constexpr size_t kEndBytes = 22, kCentralBytes = 46, kLocalBytes = 30;
constexpr size_t kChunkBytes = 1 << 20;

struct Member {
  std::string name;
  uint64_t local_offset = 0;
  uint64_t packed = 0;    // bytes
  uint64_t unpacked = 0;  // bytes
  uint32_t crc = 0;
  uint16_t method = 0;  // 0 stored, 8 deflated
};

uint64_t Little(Bytes bytes, size_t at, int width) {
  uint64_t value = 0;
  for (int i = width - 1; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

absl::StatusOr<std::vector<Member>> ReadDirectory(Bytes file) {
  if (file.size() < kEndBytes) return absl::InvalidArgumentError("too short for a zip archive");
  // The end record is followed by a comment of at most 64 KiB.
  size_t end = file.size() - kEndBytes;
  const size_t lowest = end > 0xffff ? end - 0xffff : 0;
  while (Little(file, end, 4) != kEndSignature) {
    if (end == lowest) return absl::InvalidArgumentError("not a zip archive (no end record)");
    --end;
  }
  uint64_t at = Little(file, end + 16, 4);
  std::vector<Member> members;
  for (uint64_t count = Little(file, end + 10, 2); count > 0; --count) {
    if (at + kCentralBytes > end || Little(file, at, 4) != kCentralSignature) {
      return absl::InvalidArgumentError(absl::StrCat("broken zip directory at byte ", at));
    }
    Member member;
    member.method = static_cast<uint16_t>(Little(file, at + 10, 2));
    member.crc = static_cast<uint32_t>(Little(file, at + 16, 4));
    member.packed = Little(file, at + 20, 4);
    member.unpacked = Little(file, at + 24, 4);
    member.local_offset = Little(file, at + 42, 4);
    const uint64_t name = Little(file, at + 28, 2);
    const uint64_t next =
        at + kCentralBytes + name + Little(file, at + 30, 2) + Little(file, at + 32, 2);
    if (next > end) return absl::InvalidArgumentError("broken zip directory");
    member.name.assign(reinterpret_cast<const char*>(file.data()) + at + kCentralBytes, name);
    members.push_back(std::move(member));
    at = next;
  }
  return members;
}

absl::StatusOr<Bytes> PackedBytes(Bytes file, const Member& member) {
  const uint64_t at = member.local_offset;
  if (at + kLocalBytes > file.size() || Little(file, at, 4) != kLocalSignature) {
    return absl::InvalidArgumentError(absl::StrCat("no member at byte ", at));
  }
  const uint64_t begin = at + kLocalBytes + Little(file, at + 26, 2) + Little(file, at + 28, 2);
  if (begin > file.size() || member.packed > file.size() - begin) {
    return absl::InvalidArgumentError(
        absl::StrCat("member of ", member.packed, " bytes at byte ", begin, " of ", file.size()));
  }
  return file.subspan(begin, member.packed);
}

// Writes `bytes` and keeps count of what was written.
struct Sink {
  std::ofstream stream;
  uint64_t written = 0;
  uLong crc = crc32(0, nullptr, 0);

  void Write(const unsigned char* data, size_t size) {
    stream.write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    written += size;
    crc = crc32(crc, data, static_cast<uInt>(size));
  }
};

absl::Status Store(Bytes packed, Sink* sink) {
  for (size_t at = 0; at < packed.size(); at += kChunkBytes) {
    sink->Write(reinterpret_cast<const unsigned char*>(packed.data()) + at,
                std::min(kChunkBytes, packed.size() - at));
  }
  return absl::OkStatus();
}

absl::Status Inflate(Bytes packed, uint64_t limit, Sink* sink) {
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return absl::InternalError("inflateInit2 failed");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  std::vector<unsigned char> chunk(kChunkBytes);
  int result = Z_OK;
  while (result == Z_OK && sink->written <= limit) {
    stream.next_out = chunk.data();
    stream.avail_out = kChunkBytes;
    result = inflate(&stream, Z_NO_FLUSH);
    sink->Write(chunk.data(), kChunkBytes - stream.avail_out);
  }
  inflateEnd(&stream);
  if (result == Z_STREAM_END) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("inflate failed with code ", result, " after ", sink->written, " bytes"));
}

absl::Status Extract(Bytes file, const Member& member, const std::string& out) {
  if (member.method != 0 && member.method != 8) {
    return absl::UnimplementedError(absl::StrCat("zip method ", member.method, " (of 0, 8)"));
  }
  constexpr uint64_t kZip64 = 0xffffffff;
  if (member.packed == kZip64 || member.unpacked == kZip64 || member.local_offset == kZip64) {
    return absl::UnimplementedError("a zip64 archive");
  }
  MR_ASSIGN_OR_RETURN(const Bytes packed, PackedBytes(file, member));
  Sink sink;
  sink.stream.open(out, std::ios::binary | std::ios::trunc);
  MR_RETURN_IF_ERROR(member.method == 0 ? Store(packed, &sink)
                                        : Inflate(packed, member.unpacked, &sink));
  sink.stream.close();
  if (!sink.stream) return absl::ResourceExhaustedError(absl::StrCat(out, ": write failed"));
  if (sink.written != member.unpacked || sink.crc != member.crc) {
    return absl::InvalidArgumentError(absl::StrCat("member has ", sink.written, " bytes, CRC-32 ",
                                                   sink.crc, "; the directory says ",
                                                   member.unpacked, ", ", member.crc));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExtractOnlyMember(const std::string& archive, const std::string& suffix,
                               const std::string& out) {
  MR_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(archive));
  auto members = ReadDirectory(file.bytes());
  if (!members.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(archive, ": ", members.status().message()));
  }
  std::vector<Member> found;
  for (const Member& member : *members) {
    if (absl::EndsWith(member.name, suffix)) found.push_back(member);
  }
  if (found.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(archive, ": holds ", found.size(), " ", suffix, " files, expected one"));
  }
  const absl::Status status = Extract(file.bytes(), found[0], out);
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(archive, ": \"", found[0].name, "\": ", status.message()));
}

}  // namespace millrace
