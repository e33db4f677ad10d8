#include "buffer/payload.h"

#include <xxhash.h>

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

static_assert(std::endian::native == std::endian::little, "payloads are little-endian");

constexpr uint32_t kMagic = 0x3154524d;  // "MRT1"
constexpr size_t kHeaderBytes = 16;
constexpr size_t kSpanBytes = 16;
constexpr size_t kChecksumBytes = 8;

size_t PayloadBytes(size_t tokens, size_t spans) {
  return kHeaderBytes + tokens * 4 + (tokens + 7) / 8 + tokens * 4 + spans * kSpanBytes +
         kChecksumBytes;
}

// Appends at `out` and moves it on.
void Put(char*& out, const void* data, size_t bytes) {
  if (bytes > 0) std::memcpy(out, data, bytes);
  out += bytes;
}

void Take(const char*& in, void* data, size_t bytes) {
  if (bytes > 0) std::memcpy(data, in, bytes);
  in += bytes;
}

}  // namespace

std::string EncodePayload(const Trajectory& trajectory) {
  const size_t n = trajectory.token_ids.size();
  std::string payload(PayloadBytes(n, trajectory.versions.size()), '\0');
  char* out = payload.data();
  const uint32_t header[4] = {kMagic, static_cast<uint32_t>(n),
                              static_cast<uint32_t>(trajectory.versions.size()), 0};
  Put(out, header, sizeof(header));
  Put(out, trajectory.token_ids.data(), n * 4);
  for (size_t i = 0; i < n; ++i) {
    if (trajectory.loss_mask[i] != 0) out[i / 8] = static_cast<char>(out[i / 8] | (1 << (i % 8)));
  }
  out += (n + 7) / 8;
  Put(out, trajectory.logprobs.data(), n * 4);
  for (const VersionSpan& span : trajectory.versions) {
    Put(out, &span.version, 8);
    Put(out, &span.begin, 4);
    Put(out, &span.end, 4);
  }
  const uint64_t checksum = XXH3_64bits(payload.data(), payload.size() - kChecksumBytes);
  Put(out, &checksum, kChecksumBytes);
  return payload;
}

absl::Status DecodePayload(absl::string_view payload, Trajectory* trajectory) {
  const auto bad = [](const auto&... parts) {
    return absl::DataLossError(absl::StrCat("payload: ", parts...));
  };
  if (payload.size() < kHeaderBytes + kChecksumBytes) {
    return bad(payload.size(), " bytes are too few");
  }
  const char* in = payload.data();
  uint32_t header[4];
  Take(in, header, sizeof(header));
  if (header[0] != kMagic) return bad("bad magic");
  const size_t n = header[1];
  const size_t spans = header[2];
  if (n > kMaxPayloadTokens || spans > n || payload.size() != PayloadBytes(n, spans)) {
    return bad(payload.size(), " bytes do not fit ", n, " tokens and ", spans, " version spans");
  }
  uint64_t checksum = 0;
  std::memcpy(&checksum, payload.data() + payload.size() - kChecksumBytes, kChecksumBytes);
  if (XXH3_64bits(payload.data(), payload.size() - kChecksumBytes) != checksum) {
    return bad("the checksum does not match");
  }
  trajectory->token_ids.resize(n);
  Take(in, trajectory->token_ids.data(), n * 4);
  trajectory->loss_mask.resize(n);
  for (size_t i = 0; i < n; ++i) {
    trajectory->loss_mask[i] = (static_cast<uint8_t>(in[i / 8]) >> (i % 8)) & 1;
  }
  in += (n + 7) / 8;
  trajectory->logprobs.resize(n);
  Take(in, trajectory->logprobs.data(), n * 4);
  trajectory->versions.resize(spans);
  for (VersionSpan& span : trajectory->versions) {
    Take(in, &span.version, 8);
    Take(in, &span.begin, 4);
    Take(in, &span.end, 4);
  }
  return absl::OkStatus();
}

}  // namespace millrace
