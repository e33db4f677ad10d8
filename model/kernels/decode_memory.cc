#include "model/kernels/decode_memory.h"

#include <sys/mman.h>

#include <new>

namespace millrace::decode {
namespace {

constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kLine = 64;

}  // namespace

HugeArena::HugeArena(int64_t bytes) : mapped_bytes_(bytes + kHugePage) {
  void* memory = mmap(nullptr, static_cast<size_t>(mapped_bytes_), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<char*>(memory);
  end_ = memory_ + mapped_bytes_;
  const auto address = reinterpret_cast<uintptr_t>(memory_);
  next_ = memory_ + (kHugePage - address % kHugePage) % kHugePage;
  madvise(next_, static_cast<size_t>(end_ - next_), MADV_HUGEPAGE);  // a hint
}

HugeArena::~HugeArena() { munmap(memory_, static_cast<size_t>(mapped_bytes_)); }

int64_t HugeArena::RoundedBytes(int64_t count) {
  return (count * static_cast<int64_t>(sizeof(float)) + kLine - 1) / kLine * kLine;
}

float* HugeArena::Take(int64_t count) {
  char* taken = next_;
  next_ += RoundedBytes(count);
  if (next_ > end_) throw std::bad_alloc();
  return reinterpret_cast<float*>(taken);
}

}  // namespace millrace::decode
