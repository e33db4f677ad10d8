// Body of one instruction set's kernels; included once by each decode_kernels_<set>.cc with
// MILLRACE_KERNEL_SET (namespace), MILLRACE_KERNEL_LANES and MILLRACE_KERNEL_ROWS (rows of a
// product tile) defined, and MILLRACE_KERNEL_BF16 where it has AVX512_BF16. Everything here is
// compiled with that set's flags, so no standard header with inline functions may be included: the
// linker could keep this copy for the whole program.
#include "model/kernels/decode_kernels.h"

#define MR_UNROLL _Pragma("GCC unroll 16")
#define MR_INLINE inline __attribute__((always_inline))

namespace millrace::decode::MILLRACE_KERNEL_SET {
namespace {

constexpr int kLanes = MILLRACE_KERNEL_LANES;
constexpr int kTileRows = MILLRACE_KERNEL_ROWS;

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntVec __attribute__((vector_size(kLanes * 4)));
typedef float LooseVec __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

MR_INLINE Vec Load(const float* p) { return *reinterpret_cast<const LooseVec*>(p); }
MR_INLINE void Store(float* p, Vec v) { *reinterpret_cast<LooseVec*>(p) = v; }
MR_INLINE Vec Splat(float x) { return x - Vec{}; }
MR_INLINE Vec Max(Vec a, Vec b) { return a > b ? a : b; }

MR_INLINE float Sum(Vec v) {
  float lanes[kLanes];
  Store(lanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

MR_INLINE float MaxLane(Vec v) {
  float lanes[kLanes];
  Store(lanes, v);
  float best = lanes[0];
  for (int i = 1; i < kLanes; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
}

// exp with a relative error of about 1e-7 for -87 <= x <= 88 (clamped outside): 2^n times a
// polynomial on [-ln2/2, ln2/2] (coefficients: Cephes expf).
MR_INLINE Vec Exp(Vec x) {
  const Vec low = Splat(-87.0f), high = Splat(88.0f);
  x = x < low ? low : x;
  x = x > high ? high : x;
  const Vec magic = Splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec shifted = x * 1.44269504088896341f + magic;
  const Vec n = shifted - magic;
  Vec r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Vec p = Splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const IntVec bits = (reinterpret_cast<IntVec>(shifted) << 23) + reinterpret_cast<IntVec>(p);
  return reinterpret_cast<Vec>(bits);
}

// The first n lanes from memory, `fill` in the others.
MR_INLINE Vec LoadPart(const float* p, int64_t n, float fill) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = i < n ? p[i] : fill;
  return Load(lanes);
}
MR_INLINE void StorePart(float* p, int64_t n, Vec v) {
  float lanes[kLanes];
  Store(lanes, v);
  for (int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

void PackPanel(const float* const* rows, int64_t k, float* out) {
  constexpr int kCols = 2 * kLanes;
  for (int64_t k0 = 0; k0 < k; k0 += 16) {
    const int64_t k1 = k0 + 16 < k ? k0 + 16 : k;
    for (int j = 0; j < kCols; ++j) {
      const float* row = rows[j];
      for (int64_t i = k0; i < k1; ++i) out[i * kCols + j] = row == nullptr ? 0.0f : row[i];
    }
  }
}

// -------------------------------------------------------------------------- matrix product

MR_INLINE void Finish(const GemmArgs& args, float* out, Vec c0, Vec c1) {
  if (args.bias != nullptr) {
    c0 += Load(args.bias);
    c1 += Load(args.bias + kLanes);
  }
  if (args.mode == GemmMode::kSwiglu) {
    const Vec y = c0 / (1.0f + Exp(-c0)) * c1;
    if (args.cols == kLanes) {
      Store(out, y);
    } else {
      StorePart(out, args.cols, y);
    }
    return;
  }
  if (args.cols == 2 * kLanes) {
    if (args.mode == GemmMode::kAdd) {
      c0 += Load(out);
      c1 += Load(out + kLanes);
    }
    Store(out, c0);
    Store(out + kLanes, c1);
    return;
  }
  float lanes[2 * kLanes];
  Store(lanes, c0);
  Store(lanes + kLanes, c1);
  for (int64_t i = 0; i < args.cols; ++i) {
    out[i] = args.mode == GemmMode::kAdd ? out[i] + lanes[i] : lanes[i];
  }
}

// `ahead` is walked a cache line a step and fetched into the second-level cache: the weights of the
// next panel, while this one is used again.
template <int R>
__attribute__((noinline)) void GemmTile(const GemmArgs& args, int64_t row, const char* ahead) {
  Vec c0[R], c1[R];
  MR_UNROLL for (int r = 0; r < R; ++r) c0[r] = c1[r] = Vec{};
  const float* b = args.panel;
  const float* a = args.a + row * args.lda;
  const int64_t lda = args.lda, k = args.k;
  for (int64_t i = 0; i < k; ++i) {
    const Vec b0 = Load(b), b1 = Load(b + kLanes);
    b += 2 * kLanes;
    __builtin_prefetch(ahead + i * 64, 0, 2);
    MR_UNROLL for (int r = 0; r < R; ++r) {
      const float x = a[r * lda + i];
      c0[r] += x * b0;
      c1[r] += x * b1;
    }
  }
  MR_UNROLL for (int r = 0; r < R; ++r) {
    Finish(args, args.out + (row + r) * args.ldo, c0[r], c1[r]);
  }
}

typedef void (*TileFunction)(const GemmArgs&, int64_t, const char*);
template <int R>
MR_INLINE void FillTiles(TileFunction* table) {
  table[R] = GemmTile<R>;
  if constexpr (R > 1) FillTiles<R - 1>(table);
}

// Rows in tiles of like size. A tile walks half a panel's length of `ahead`.
void ForTiles(const GemmArgs& args, const TileFunction* tiles_of, const void* panel,
              int64_t panel_bytes) {
  if (args.rows <= 0) return;
  const int64_t tiles = (args.rows + kTileRows - 1) / kTileRows;
  const int64_t least = args.rows / tiles, more = args.rows % tiles;
  const char* here = static_cast<const char*>(panel);
  int64_t row = 0;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t count = least + (t < more ? 1 : 0);
    const char* ahead = here + 1024;
    if (t == 1) ahead = here + panel_bytes;
    if (t == 2) ahead = here + panel_bytes + panel_bytes / 2;
    if (t > 2) ahead = here;
    tiles_of[count](args, row, ahead);
    row += count;
  }
}

void Gemm(const GemmArgs& args) {
  TileFunction tiles_of[kTileRows + 1];
  FillTiles<kTileRows>(tiles_of);
  ForTiles(args, tiles_of, args.panel, args.k * 2 * kLanes * 4);
}

#ifdef MILLRACE_KERNEL_BF16
#include "model/kernels/decode_bf16_body.h"
#endif

// --------------------------------------------------------------------------- norm and rope

MR_INLINE float SquareSum(const float* x, int64_t n) {
  Vec sum = Vec{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum += Load(x + i) * Load(x + i);
  float total = Sum(sum);
  for (; i < n; ++i) total += x[i] * x[i];
  return total;
}

void RmsNorm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  const float scale = 1.0f / __builtin_sqrtf(SquareSum(x, n) / static_cast<float>(n) + eps);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(out + i, Load(x + i) * scale * Load(weight + i));
  for (; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

// Rotates the halves of x by the position's angles, times `scale`.
MR_INLINE void Rotate(float* x, const QkvArgs& args, float scale) {
  const int64_t half = args.head_dim / 2;
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Vec a = Load(x + i), b = Load(x + half + i);
    const Vec c = Load(args.cos + i) * scale, s = Load(args.sin + i) * scale;
    Store(x + i, a * c - b * s);
    Store(x + half + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i], c = args.cos[i] * scale, s = args.sin[i] * scale;
    x[i] = a * c - b * s;
    x[half + i] = b * c + a * s;
  }
}

void Qkv(const QkvArgs& args) {
  const int64_t d = args.head_dim;
  for (int64_t h = 0; h < args.heads; ++h) {
    float* q = args.qkv + h * d;
    if (args.q_norm != nullptr) RmsNorm(q, args.q_norm, args.eps, d, q);
    Rotate(q, args, args.scale);
  }
  for (int64_t h = 0; h < args.kv_heads; ++h) {
    float* k = args.qkv + (args.heads + h) * d;
    if (args.k_norm != nullptr) RmsNorm(k, args.k_norm, args.eps, d, k);
    Rotate(k, args, 1.0f);
    float* keys = args.keys + h * d * kKvBlock;
    for (int64_t i = 0; i < d; ++i) keys[i * kKvBlock] = k[i];
    const float* v = args.qkv + (args.heads + args.kv_heads + h) * d;
    float* values = args.values + h * d * kKvBlock;
    for (int64_t i = 0; i < d; ++i) values[i] = v[i];
  }
}

#include "model/kernels/decode_attention_body.h"

// -------------------------------------------------------------------------------- sampling

float MaxOf(const float* x, int64_t n) {
  Vec best = Splat(-__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) best = Max(Load(x + i), best);
  if (i < n) best = Max(LoadPart(x + i, n - i, -__builtin_inff()), best);
  return MaxLane(best);
}

float ExpSum(const float* x, int64_t n, float scale, float reference, float* out) {
  Vec sum = Vec{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec e = Exp((Load(x + i) - reference) * scale);
    if (out != nullptr) Store(out + i, e);
    sum += e;
  }
  float total = Sum(sum);
  if (i < n) {
    const Vec e = Exp((LoadPart(x + i, n - i, reference) - reference) * scale);
    for (int64_t j = 0; i + j < n; ++j) {
      if (out != nullptr) out[i + j] = e[j];
      total += e[j];
    }
  }
  return total;
}

}  // namespace

#define MR_TEXT_OF(name) #name
#define MR_TEXT(name) MR_TEXT_OF(name)
const Kernels& Table() {
  static constexpr Kernels table = {MR_TEXT(MILLRACE_KERNEL_SET),
                                    kLanes,
                                    PackPanel,
                                    Gemm,
#ifdef MILLRACE_KERNEL_BF16
                                    PackPanelBf16,
                                    RoundBf16,
                                    GemmBf16,
#else
                                    nullptr,
                                    nullptr,
                                    nullptr,
#endif
                                    RmsNorm,
                                    Qkv,
                                    Attention,
                                    MaxOf,
                                    ExpSum};
  return table;
}

}  // namespace millrace::decode::MILLRACE_KERNEL_SET
