#include "model/kernels/train_elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "model/kernels/parallel.h"
#include "model/kernels/train_simd.h"

namespace millrace {
namespace {

// Rows of one block of a reduction over rows: few enough that all threads have work, and the same
// for any number of them.
int64_t BlockRows(int64_t rows) { return std::max<int64_t>(64, (rows + 15) / 16); }

// f(begin, end) over rows, each thread a share. For work where rows do not meet.
template <typename F>
void ForEachShare(int64_t rows, int64_t width, const F& f) {
  const int64_t grain = std::max<int64_t>(1, 8192 / std::max<int64_t>(1, width));
  at::parallel_for(0, rows, grain, f);
}

// f(begin, end, sums) over blocks of rows with sums (width) zeroed for each; then adds all sums to
// `total` in order of blocks.
template <typename F>
void ReduceBlocks(int64_t rows, int64_t width, float* total, const F& f) {
  const int64_t block = BlockRows(rows), blocks = (rows + block - 1) / block;
  std::vector<float> sums(blocks * width, 0.0f);
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      f(b * block, std::min(rows, (b + 1) * block), sums.data() + b * width);
    }
  });
  for (int64_t b = 0; b < blocks; ++b) {
    for (int64_t i = 0; i < width; ++i) total[i] += sums[b * width + i];
  }
}

// Sum over i of f(i) in independent lanes.
template <typename F>
MILLRACE_SIMD_INLINE float LaneSum(int64_t n, const F& f) {
  float lanes[kSimdLanes] = {};
  const int64_t whole = n / kSimdLanes * kSimdLanes;
  for (int64_t i = 0; i < whole; i += kSimdLanes) {
    for (int64_t j = 0; j < kSimdLanes; ++j) lanes[j] += f(i + j);
  }
  float sum = 0;
  for (int64_t i = whole; i < n; ++i) sum += f(i);
  return sum + SumLanes(lanes);
}

MILLRACE_SIMD_INLINE float InverseRms(const float* x, int64_t n, float eps) {
  const float squares = LaneSum(n, [&](int64_t i) MILLRACE_SIMD_LAMBDA { return x[i] * x[i]; });
  return 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
}

MILLRACE_SIMD_CLONES void NormRows(const RmsNormShape& s, int64_t begin, int64_t end,
                                   const float* x, const float* weight, float* y) {
  for (int64_t r = begin; r < end; ++r) {
    const float* xr = x + r * s.width;
    float* yr = y + r * s.width;
    const float scale = InverseRms(xr, s.width, s.eps);
    for (int64_t i = 0; i < s.width; ++i) yr[i] = xr[i] * scale * weight[i];
  }
}

struct NormGradient {  // of memory that does not overlap
  const float* __restrict x, * __restrict weight, * __restrict d_y;
  float* __restrict d_x;
  bool add;
};

// One row: x is n long; d_weight is added to.
MILLRACE_SIMD_INLINE void NormRowBackward(const NormGradient& g, int64_t n, float eps,
                                          float* d_weight) {
  const float scale = InverseRms(g.x, n, eps);
  const float inner =
      LaneSum(n, [&](int64_t i) MILLRACE_SIMD_LAMBDA { return g.d_y[i] * g.weight[i] * g.x[i]; });
  const float back = inner * scale * scale / static_cast<float>(n);
  if (g.add) {
    for (int64_t i = 0; i < n; ++i) {
      d_weight[i] += g.d_y[i] * g.x[i] * scale;
      g.d_x[i] += scale * (g.d_y[i] * g.weight[i] - g.x[i] * back);
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const float d = g.d_y[i];
      d_weight[i] += d * g.x[i] * scale;
      g.d_x[i] = scale * (d * g.weight[i] - g.x[i] * back);
    }
  }
}

MILLRACE_SIMD_CLONES void NormRowsBackward(const RmsNormShape& s, int64_t begin, int64_t end,
                                           const NormGradient& g, float* d_weight) {
  for (int64_t r = begin; r < end; ++r) {
    const int64_t at = r * s.width;
    NormRowBackward({g.x + at, g.weight, g.d_y + at, g.d_x + at, g.add}, s.width, s.eps, d_weight);
  }
}

MILLRACE_SIMD_CLONES void RotateRows(const RotaryShape& s, int64_t begin, int64_t end,
                                     const float* qkv, float* qk) {
  const int64_t half = s.head_dim / 2;
  const float query_scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  for (int64_t r = begin; r < end; ++r) {
    const float* cos = s.table + s.positions[r] * s.head_dim;
    const float* sin = cos + half;
    for (int64_t h = 0; h < s.heads + s.kv_heads; ++h) {
      const bool query = h < s.heads;
      const float* __restrict x = qkv + r * s.QkvWidth() + h * s.head_dim;
      float* __restrict y = qk + r * s.QkWidth() + h * s.head_dim;
      const float* norm = query ? s.q_norm : s.k_norm;
      float scale = query ? query_scale : 1.0f;
      if (norm != nullptr) {
        scale *= InverseRms(x, s.head_dim, s.eps);
        for (int64_t i = 0; i < half; ++i) {
          const float a = x[i] * norm[i] * scale, b = x[i + half] * norm[i + half] * scale;
          y[i] = a * cos[i] - b * sin[i];
          y[i + half] = b * cos[i] + a * sin[i];
        }
      } else {
        for (int64_t i = 0; i < half; ++i) {
          const float a = x[i] * scale, b = x[i + half] * scale;
          y[i] = a * cos[i] - b * sin[i];
          y[i + half] = b * cos[i] + a * sin[i];
        }
      }
    }
  }
}

// sums: head_dim of q_norm, then head_dim of k_norm.
MILLRACE_SIMD_CLONES void RotateRowsBackward(const RotaryShape& s, int64_t begin, int64_t end,
                                             const float* qkv, float* d_qkv, float* sums) {
  const int64_t half = s.head_dim / 2;
  const float query_scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  float rotated[kMaxHeadDim];
  for (int64_t r = begin; r < end; ++r) {
    const float* cos = s.table + s.positions[r] * s.head_dim;
    const float* sin = cos + half;
    for (int64_t h = 0; h < s.heads + s.kv_heads; ++h) {
      const bool query = h < s.heads;
      float* __restrict d = d_qkv + r * s.QkvWidth() + h * s.head_dim;
      const float scale = query ? query_scale : 1.0f;
      for (int64_t i = 0; i < half; ++i) {
        const float a = d[i] * scale, b = d[i + half] * scale;
        rotated[i] = a * cos[i] + b * sin[i];
        rotated[i + half] = b * cos[i] - a * sin[i];
      }
      const float* norm = query ? s.q_norm : s.k_norm;
      if (norm == nullptr) {
        std::memcpy(d, rotated, s.head_dim * sizeof(float));
        continue;
      }
      const float* x = qkv + r * s.QkvWidth() + h * s.head_dim;
      NormRowBackward({x, norm, rotated, d, false}, s.head_dim, s.eps,
                      query ? sums : sums + s.head_dim);
    }
  }
}

MILLRACE_SIMD_INLINE float Sigmoid(float x) { return 1.0f / (1.0f + FastExp(-x)); }

MILLRACE_SIMD_CLONES void SwiGluRows(int64_t rows, int64_t width, const float* gate_up, float* y) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* __restrict gate = gate_up + r * 2 * width, * __restrict up = gate + width;
    float* __restrict yr = y + r * width;
    for (int64_t i = 0; i < width; ++i) yr[i] = gate[i] * Sigmoid(gate[i]) * up[i];
  }
}

MILLRACE_SIMD_CLONES void SwiGluRowsBackward(int64_t rows, int64_t width, const float* d_y,
                                             float* gate_up, float* y) {
  for (int64_t r = 0; r < rows; ++r) {
    float* __restrict gate = gate_up + r * 2 * width, * __restrict up = gate + width;
    const float* __restrict d = d_y + r * width;
    float* __restrict yr = y + r * width;
    for (int64_t i = 0; i < width; ++i) {
      const float g = gate[i], u = up[i], s = Sigmoid(g), silu = g * s;
      yr[i] = silu * u;
      up[i] = d[i] * silu;
      gate[i] = d[i] * u * (s + silu * (1.0f - s));
    }
  }
}

MILLRACE_SIMD_CLONES void AddRows(int64_t rows, int64_t width, const float* x, float* sums) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i) sums[i] += x[r * width + i];
  }
}

}  // namespace

void RmsNormForward(const RmsNormShape& shape, const float* x, const float* weight, float* y) {
  ForEachShare(shape.rows, shape.width,
               [&](int64_t begin, int64_t end) { NormRows(shape, begin, end, x, weight, y); });
}

void RmsNormBackward(const RmsNormShape& shape, const float* x, const float* weight,
                     const float* d_y, float* d_x, bool add, float* d_weight) {
  const NormGradient g{x, weight, d_y, d_x, add};
  ReduceBlocks(shape.rows, shape.width, d_weight, [&](int64_t begin, int64_t end, float* sums) {
    NormRowsBackward(shape, begin, end, g, sums);
  });
}

void RotaryForward(const RotaryShape& shape, const float* qkv, float* qk) {
  ForEachShare(shape.rows, shape.QkvWidth(),
               [&](int64_t begin, int64_t end) { RotateRows(shape, begin, end, qkv, qk); });
}

void RotaryBackward(const RotaryShape& shape, const float* qkv, float* d_qkv, float* d_q_norm,
                    float* d_k_norm) {
  std::vector<float> sums(2 * shape.head_dim, 0.0f);
  ReduceBlocks(shape.rows, 2 * shape.head_dim, sums.data(),
               [&](int64_t begin, int64_t end, float* block) {
                 RotateRowsBackward(shape, begin, end, qkv, d_qkv, block);
               });
  if (shape.q_norm == nullptr) return;
  for (int64_t i = 0; i < shape.head_dim; ++i) {
    d_q_norm[i] += sums[i];
    d_k_norm[i] += sums[shape.head_dim + i];
  }
}

void SwiGluForward(int64_t rows, int64_t width, const float* gate_up, float* y) {
  ForEachShare(rows, width, [&](int64_t begin, int64_t end) {
    SwiGluRows(end - begin, width, gate_up + begin * 2 * width, y + begin * width);
  });
}

void SwiGluBackward(int64_t rows, int64_t width, const float* d_y, float* gate_up, float* y) {
  ForEachShare(rows, width, [&](int64_t begin, int64_t end) {
    SwiGluRowsBackward(end - begin, width, d_y + begin * width, gate_up + begin * 2 * width,
                       y + begin * width);
  });
}

void AddColumnSums(int64_t rows, int64_t width, const float* x, float* sums) {
  ReduceBlocks(rows, width, sums, [&](int64_t begin, int64_t end, float* block) {
    AddRows(end - begin, width, x + begin * width, block);
  });
}

void GatherRows(int64_t rows, int64_t width, const int32_t* ids, const float* table, float* x) {
  ForEachShare(rows, width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::memcpy(x + r * width, table + ids[r] * width, width * sizeof(float));
    }
  });
}

void ScatterAddRows(int64_t rows, int64_t width, const int32_t* ids, const float* x, float* table) {
  // Threads share the columns, so that rows of one id never meet.
  at::parallel_for(0, width, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = 0; r < rows; ++r) {
      AddRows(1, end - begin, x + r * width + begin, table + ids[r] * width + begin);
    }
  });
}

}  // namespace millrace
