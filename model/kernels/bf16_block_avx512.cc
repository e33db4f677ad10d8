// Compiled for AVX512_BF16; no standard header with inline functions may be included, since the
// linker could keep this copy for the whole program.
#include <immintrin.h>

#include "model/kernels/bf16_block.h"
#include "model/kernels/bf16_pairs.h"

namespace millrace::bf16 {
namespace {

#define MR_UNROLL _Pragma("GCC unroll 16")

int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t RoundUp(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// A packed panel of R lines (rows of a or columns of b) holds pairs of neighbours along k: element
// (line, i) is the 16-bit number [(i / 2 * R + line) * 2 + i % 2].

// v[i] lane j <-> v[j] lane i, of 32-bit lanes.
void Transpose(__m512i* v) {
  __m512i t[16];
  MR_UNROLL for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  MR_UNROLL for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  MR_UNROLL for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xDD);
    t[i + 8] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xDD);
  }
  MR_UNROLL for (int i = 0; i < 4; ++i) {
    v[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    v[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
    v[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    v[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xDD);
  }
}

// Lines whose numbers are neighbours along k: `line` floats from a line to the next.
template <int64_t R>
void PackAlong(const float* x, int64_t line, int64_t lines, int64_t k, uint16_t* out) {
  for (int64_t first = 0; first < R; first += 16) {
    const int64_t width = Min(16, R - first), valid = Min(width, lines - first);
    for (int64_t i = 0; i < k; i += 32) {
      __m512i v[16];
      MR_UNROLL for (int64_t j = 0; j < 16; ++j) {
        v[j] = j < valid ? Pairs(x + (first + j) * line + i, k - i) : _mm512_setzero_si512();
      }
      Transpose(v);
      const int64_t pairs = Min(16, (k - i + 1) / 2);
      const __mmask16 mask = FirstLanes(width);
      for (int64_t p = 0; p < pairs; ++p) {
        _mm512_mask_storeu_epi32(out + ((i / 2 + p) * R + first) * 2, mask, v[p]);
      }
    }
  }
}

// Lines that are neighbours themselves: `step` floats from one k to the next.
template <int64_t R>
void PackAcross(const float* x, int64_t step, int64_t lines, int64_t k, uint16_t* out) {
  alignas(64) static constexpr uint16_t kInterleave[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i interleave = _mm512_load_si512(kInterleave);
  for (int64_t i = 0; i < k; i += 2) {
    for (int64_t first = 0; first < R; first += 16) {
      const __mmask16 read = FirstLanes(lines - first);
      const float* even = x + i * step + first;
      const __m512 low = _mm512_maskz_loadu_ps(read, even);
      const __m512 high = _mm512_maskz_loadu_ps(i + 1 < k ? read : 0, even + step);
      const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
      _mm512_mask_storeu_epi32(out + (i / 2 * R + first) * 2, FirstLanes(R - first),
                               _mm512_permutexvar_epi16(interleave, both));
    }
  }
}

// Panels of R lines each, one after the other. line, step: floats from a line, from a k, to the
// next.
template <int64_t R>
void Pack(const float* x, int64_t line, int64_t step, int64_t lines, int64_t k, uint16_t* out) {
  for (int64_t first = 0; first < lines; first += R) {
    uint16_t* panel = out + first * RoundUp(k, 2);
    const int64_t count = Min(R, lines - first);
    if (step == 1) {
      PackAlong<R>(x + first * line, line, count, k, panel);
    } else {
      PackAcross<R>(x + first, step, count, k, panel);
    }
  }
}

struct Tile {
  float* out;
  int64_t out_row;
  const float* start;  // null = zeros
  int64_t start_row;
  int64_t rows, columns;  // valid ones
};

void StoreTile(const Tile& t, const __m512 (*sum)[2]) {
  const __mmask16 low = FirstLanes(t.columns), high = FirstLanes(t.columns - 16);
  for (int64_t r = 0; r < t.rows; ++r) {
    __m512 c0 = sum[r][0], c1 = sum[r][1];
    if (t.start != nullptr) {
      const float* start = t.start + r * t.start_row;
      c0 = _mm512_add_ps(c0, _mm512_maskz_loadu_ps(low, start));
      c1 = _mm512_add_ps(c1, _mm512_maskz_loadu_ps(high, start + 16));
    }
    float* out = t.out + r * t.out_row;
    _mm512_mask_storeu_ps(out, low, c0);
    _mm512_mask_storeu_ps(out + 16, high, c1);
  }
}

void MultiplyTile(int64_t pairs, const uint16_t* a, const uint16_t* b, const Tile& tile) {
  __m512 c[kTileRows][2];
  MR_UNROLL for (int r = 0; r < kTileRows; ++r) c[r][0] = c[r][1] = _mm512_setzero_ps();
  const int32_t* left = reinterpret_cast<const int32_t*>(a);
  const char* right = reinterpret_cast<const char*>(b);
  for (int64_t p = 0; p < pairs; ++p) {
    const __m512bh b0 = reinterpret_cast<__m512bh>(_mm512_load_si512(right));
    const __m512bh b1 = reinterpret_cast<__m512bh>(_mm512_load_si512(right + 64));
    right += 128;
    MR_UNROLL for (int r = 0; r < kTileRows; ++r) {
      const __m512bh x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(left[r]));
      c[r][0] = _mm512_dpbf16_ps(c[r][0], x, b0);
      c[r][1] = _mm512_dpbf16_ps(c[r][1], x, b1);
    }
    left += kTileRows;
  }
  __m512 sums[kTileRows][2];
  MR_UNROLL for (int r = 0; r < kTileRows; ++r) {
    sums[r][0] = c[r][0];
    sums[r][1] = c[r][1];
  }
  StoreTile(tile, sums);
}

// The product of a packed (rows, depth) and a packed (depth, columns).
void MultiplyPacked(int64_t depth, const uint16_t* a, const uint16_t* b, const Tile& block) {
  const int64_t even = RoundUp(depth, 2);
  for (int64_t j = 0; j < block.columns; j += kTileColumns) {
    for (int64_t i = 0; i < block.rows; i += kTileRows) {
      Tile tile = block;
      tile.out += i * block.out_row + j;
      if (tile.start != nullptr) tile.start += i * block.start_row + j;
      tile.rows = Min(kTileRows, block.rows - i);
      tile.columns = Min(kTileColumns, block.columns - j);
      MultiplyTile(even / 2, a + i * even, b + j * even, tile);
    }
  }
}

}  // namespace

void Multiply(const Bf16Product& p, uint16_t* scratch) {
  uint16_t* const packed_a = scratch;
  uint16_t* const packed_b = scratch + kBlockRows * kDepth;
  const int64_t slices = (p.k + kDepth - 1) / kDepth;
  const int64_t depth = RoundUp((p.k + slices - 1) / slices, 2);
  for (int64_t j = 0; j < p.n; j += kBlockColumns) {
    const int64_t columns = Min(kBlockColumns, p.n - j);
    for (int64_t l = 0; l < p.k; l += depth) {
      const int64_t deep = Min(depth, p.k - l);
      Pack<kTileColumns>(p.b.data + l * p.b.row + j * p.b.column, p.b.column, p.b.row, columns,
                         deep, packed_b);
      for (int64_t i = 0; i < p.m; i += kBlockRows) {
        const int64_t rows = Min(kBlockRows, p.m - i);
        Pack<kTileRows>(p.a.data + i * p.a.row + l * p.a.column, p.a.row, p.a.column, rows, deep,
                        packed_a);
        float* out = p.out + i * p.out_row + j;
        const float* start = p.start == nullptr ? nullptr : p.start + i * p.start_row + j;
        if (l > 0) {
          MultiplyPacked(deep, packed_a, packed_b, {out, p.out_row, out, p.out_row, rows, columns});
        } else {
          MultiplyPacked(deep, packed_a, packed_b,
                         {out, p.out_row, start, p.start_row, rows, columns});
        }
      }
    }
  }
}

}  // namespace millrace::bf16
