// Products of bf16 factors: part of decode_kernels_body.h, for a set with AVX512_BF16. Numbers lie
// in pairs of neighbours along k, as the dot-product instruction takes them.

void RoundBf16(const float* x, int64_t n, uint16_t* out) {
  const int64_t even = (n + 1) / 2 * 2;
  int64_t i = 0;
  for (; i + 32 <= even; i += 32) _mm512_storeu_si512(out + i, bf16::Pairs(x + i, n - i));
  const __mmask16 rest = bf16::FirstLanes((even - i) / 2);
  if (i < even) _mm512_mask_storeu_epi32(out + i, rest, bf16::Pairs(x + i, n - i));
}

void PackPanelBf16(const float* const* rows, int64_t k, uint16_t* out) {
  constexpr int kCols = 2 * kLanes;
  for (int64_t k0 = 0; k0 < k; k0 += 32) {
    const int64_t pairs = k - k0 >= 32 ? 16 : (k - k0 + 1) / 2;
    for (int j = 0; j < kCols; ++j) {
      alignas(64) uint32_t line[16] = {};
      if (rows[j] != nullptr) _mm512_store_si512(line, bf16::Pairs(rows[j] + k0, k - k0));
      uint32_t* column = reinterpret_cast<uint32_t*>(out) + k0 / 2 * kCols + j;
      for (int64_t p = 0; p < pairs; ++p) column[p * kCols] = line[p];
    }
  }
}

template <int R>
__attribute__((noinline)) void GemmTileBf16(const GemmArgs& args, int64_t row, const char* ahead) {
  Vec c0[R], c1[R];
  MR_UNROLL for (int r = 0; r < R; ++r) c0[r] = c1[r] = Vec{};
  const uint16_t* b = args.panel_bf16;
  const int32_t* a = reinterpret_cast<const int32_t*>(args.a_bf16 + row * args.lda);
  const int64_t lda = args.lda / 2, pairs = (args.k + 1) / 2;
  for (int64_t i = 0; i < pairs; ++i) {
    const __m512bh b0 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b));
    const __m512bh b1 = reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + 2 * kLanes));
    b += 4 * kLanes;
    __builtin_prefetch(ahead + i * 64, 0, 2);
    MR_UNROLL for (int r = 0; r < R; ++r) {
      const __m512bh x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(a[r * lda + i]));
      c0[r] = _mm512_dpbf16_ps(c0[r], x, b0);
      c1[r] = _mm512_dpbf16_ps(c1[r], x, b1);
    }
  }
  MR_UNROLL for (int r = 0; r < R; ++r) {
    Finish(args, args.out + (row + r) * args.ldo, c0[r], c1[r]);
  }
}

template <int R>
MR_INLINE void FillTilesBf16(TileFunction* table) {
  table[R] = GemmTileBf16<R>;
  if constexpr (R > 1) FillTilesBf16<R - 1>(table);
}

// lda even.
void GemmBf16(const GemmArgs& args) {
  TileFunction tiles_of[kTileRows + 1];
  FillTilesBf16<kTileRows>(tiles_of);
  ForTiles(args, tiles_of, args.panel_bf16, (args.k + 1) / 2 * 2 * kLanes * 4);
}
