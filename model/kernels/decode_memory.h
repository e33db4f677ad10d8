// Memory from the system in huge pages where it has them: what a decode step walks through (weights
// and K/V) is larger than what the address caches of 4 KiB pages cover.
#ifndef MILLRACE_MODEL_KERNELS_DECODE_MEMORY_H_
#define MILLRACE_MODEL_KERNELS_DECODE_MEMORY_H_

#include <cstdint>

namespace millrace::decode {

// Zeros; takes physical memory only where it is written. Throws std::bad_alloc. Not thread-safe.
class HugeArena {
 public:
  explicit HugeArena(int64_t bytes);
  ~HugeArena();
  HugeArena(const HugeArena&) = delete;
  HugeArena& operator=(const HugeArena&) = delete;
  // The next `count` floats, on a cache line. The sum of RoundedBytes(count) must not exceed the
  // arena.
  float* Take(int64_t count);
  static int64_t RoundedBytes(int64_t count);

 private:
  char* memory_;
  int64_t mapped_bytes_;
  char* next_;
  char* end_;
};

}  // namespace millrace::decode

#endif  // MILLRACE_MODEL_KERNELS_DECODE_MEMORY_H_
