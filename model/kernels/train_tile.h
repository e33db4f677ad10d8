// Matrix products of the small blocks that attention works on.
#ifndef MILLRACE_MODEL_KERNELS_TRAIN_TILE_H_
#define MILLRACE_MODEL_KERNELS_TRAIN_TILE_H_

#include <cstdint>
#include <cstring>

#include "model/kernels/train_simd.h"

namespace millrace {

constexpr int64_t kTileLanes = kSimdLanes;
// Sixteen floats: one AVX-512 register, two of AVX2, four of SSE.
typedef float TileVector __attribute__((vector_size(64), aligned(4), may_alias));

inline int64_t RoundUpToLanes(int64_t n) { return (n + kTileLanes - 1) / kTileLanes * kTileLanes; }

// Strided left operand: element (m, k) is data[m * row + k * column].
struct TileLeft {
  const float* data;
  int64_t row, column;
};
// Row-major right operand or result.
struct TileRows {
  const float* data;
  int64_t stride;
};
struct TileOut {
  float* data;
  int64_t stride;
};

template <int kRows, int kVectors>
MILLRACE_SIMD_INLINE void TileBlock(int64_t depth, TileLeft a, TileRows b, TileOut c, bool add) {
  TileVector sum[kRows][kVectors];
  for (int m = 0; m < kRows; ++m) {
    for (int v = 0; v < kVectors; ++v) {
      sum[m][v] = add ? *reinterpret_cast<const TileVector*>(c.data + m * c.stride + v * kTileLanes)
                      : TileVector{};
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    TileVector right[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      right[v] = *reinterpret_cast<const TileVector*>(b.data + k * b.stride + v * kTileLanes);
    }
    for (int m = 0; m < kRows; ++m) {
      const float left = a.data[m * a.row + k * a.column];
      for (int v = 0; v < kVectors; ++v) sum[m][v] += left * right[v];
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int v = 0; v < kVectors; ++v) {
      *reinterpret_cast<TileVector*>(c.data + m * c.stride + v * kTileLanes) = sum[m][v];
    }
  }
}

template <int kVectors>
MILLRACE_SIMD_INLINE void TileColumn(int64_t rows, int64_t depth, TileLeft a, TileRows b, TileOut c,
                                     bool add) {
  const auto skip = [&](int64_t n) MILLRACE_SIMD_LAMBDA {
    rows -= n;
    a.data += n * a.row;
    c.data += n * c.stride;
  };
  for (; rows >= 8; skip(8)) TileBlock<8, kVectors>(depth, a, b, c, add);
  if (rows >= 4) {
    TileBlock<4, kVectors>(depth, a, b, c, add);
    skip(4);
  }
  if (rows >= 2) {
    TileBlock<2, kVectors>(depth, a, b, c, add);
    skip(2);
  }
  if (rows == 1) TileBlock<1, kVectors>(depth, a, b, c, add);
}

struct TileSize {
  int64_t rows, columns, depth;
};

// c = a b, or c += a b. `columns` is rounded up to 16: b must be readable and c writable there;
// what is written behind `columns` is meaningless.
MILLRACE_SIMD_INLINE void TileProduct(TileSize n, TileLeft a, TileRows b, TileOut c, bool add) {
  int64_t at = 0;
  for (; at + kTileLanes < n.columns; at += 2 * kTileLanes) {
    TileColumn<2>(n.rows, n.depth, a, {b.data + at, b.stride}, {c.data + at, c.stride}, add);
  }
  if (at < n.columns) {
    TileColumn<1>(n.rows, n.depth, a, {b.data + at, b.stride}, {c.data + at, c.stride}, add);
  }
}

}  // namespace millrace

#endif  // MILLRACE_MODEL_KERNELS_TRAIN_TILE_H_
