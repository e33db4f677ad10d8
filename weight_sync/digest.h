// XXH3-64, the digest of every bucket and tensor, with the widest vector unit of the machine.
#ifndef MILLRACE_WEIGHT_SYNC_DIGEST_H_
#define MILLRACE_WEIGHT_SYNC_DIGEST_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"

namespace millrace {

uint64_t Digest64(absl::Span<const std::byte> bytes);

// The same value over bytes that come in pieces. Not thread-safe; a copy goes on from where the
// original is.
class StreamDigest {
 public:
  StreamDigest();
  ~StreamDigest();
  StreamDigest(const StreamDigest& other);
  StreamDigest& operator=(const StreamDigest& other);

  void Reset();
  void Update(absl::Span<const std::byte> bytes);
  uint64_t Finish() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millrace

#endif  // MILLRACE_WEIGHT_SYNC_DIGEST_H_
