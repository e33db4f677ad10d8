#include "model/kernels/bf16_products.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "model/kernels/bf16_block.h"
#include "model/kernels/parallel.h"

namespace millrace {

#ifdef MILLRACE_X86_KERNELS

namespace {

struct AlignedFree {
  void operator()(uint16_t* p) const { std::free(p); }
};

uint16_t* ThreadScratch() {
  thread_local std::unique_ptr<uint16_t, AlignedFree> scratch;
  if (scratch == nullptr) {
    scratch.reset(static_cast<uint16_t*>(std::aligned_alloc(64, bf16::kScratch * 2)));
    if (scratch == nullptr) throw std::bad_alloc();
  }
  return scratch.get();
}

// Items begin..end of the dimension that is split, each `unit` wide.
Bf16Product Part(const Bf16Product& whole, bool columns, int64_t begin, int64_t end) {
  Bf16Product part = whole;
  if (columns) {
    part.n = end - begin;
    part.b.data += begin * whole.b.column;
    part.out += begin;
    if (part.start != nullptr) part.start += begin;
  } else {
    part.m = end - begin;
    part.a.data += begin * whole.a.row;
    part.out += begin * whole.out_row;
    if (part.start != nullptr) part.start += begin * whole.start_row;
  }
  return part;
}

}  // namespace

bool HasBf16Products() {
  static const bool has = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512bf16");
  }();
  return has;
}

void MultiplyBf16(const Bf16Product& p) {
  if (p.m <= 0 || p.n <= 0) return;
  // The longer dimension is split: packing the other factor again for each thread costs least.
  const bool columns = p.n >= p.m;
  const int64_t unit = columns ? bf16::kTileColumns : bf16::kTileRows;
  const int64_t length = columns ? p.n : p.m, items = (length + unit - 1) / unit;
  at::parallel_for(0, items, 1, [&](int64_t begin, int64_t end) {
    bf16::Multiply(Part(p, columns, begin * unit, std::min(end * unit, length)), ThreadScratch());
  });
}

#else

bool HasBf16Products() { return false; }
void MultiplyBf16(const Bf16Product&) { std::abort(); }

#endif

}  // namespace millrace
