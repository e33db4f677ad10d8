// Attention over cache blocks, for decode_kernels_body.h, inside whose namespace it is included.

constexpr int kVecsPerBlock = kKvBlock / kLanes;
constexpr int64_t kChunkBlocks = kAttentionChunk / kKvBlock;

// Rows [begin, end) of the call against `tokens` tokens of `blocks` that lie from block `first` on
// in the chunk.
struct Run {
  int64_t begin, end;
  const int32_t* blocks;
  int64_t first, tokens;
};

MR_INLINE int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }

// Scores of R rows against V vectors of tokens.
template <int R, int V>
MR_INLINE void ScoreTile(const AttentionArgs& args, int64_t row, const float* const* columns,
                         float* scores) {
  Vec sum[R][V];
  const float* q[R];
  MR_UNROLL for (int r = 0; r < R; ++r) {
    q[r] = args.rows[row + r].q;
    MR_UNROLL for (int v = 0; v < V; ++v) sum[r][v] = Vec{};
  }
  const int64_t head_dim = args.head_dim;
  for (int64_t i = 0; i < head_dim; ++i) {
    MR_UNROLL for (int v = 0; v < V; ++v) {
      const Vec key = Load(columns[v] + i * kKvBlock);
      __builtin_prefetch(columns[v] + args.ahead + i * kKvBlock, 0, 2);
      MR_UNROLL for (int r = 0; r < R; ++r) sum[r][v] += q[r][i] * key;
    }
  }
  MR_UNROLL for (int r = 0; r < R; ++r) {
    MR_UNROLL for (int v = 0; v < V; ++v) {
      Store(scores + (row + r) * kAttentionChunk + v * kLanes, sum[r][v]);
    }
  }
}

template <int R>
__attribute__((noinline)) void ScoreRows(const AttentionArgs& args, const Run& run, int64_t row) {
  const float* columns[kChunkBlocks * kVecsPerBlock];
  const int64_t vecs = (run.tokens + kKvBlock - 1) / kKvBlock * kVecsPerBlock;
  for (int64_t v = 0; v < vecs; ++v) {
    columns[v] =
        args.keys + run.blocks[v / kVecsPerBlock] * args.block_stride + v % kVecsPerBlock * kLanes;
  }
  float* scores = args.scratch + run.first * kKvBlock;
  constexpr int kWide = kLanes == 16 ? 4 : 2;
  int64_t v = 0;
  for (; v + kWide <= vecs; v += kWide) {
    ScoreTile<R, kWide>(args, row, columns + v, scores + v * kLanes);
  }
  for (; v < vecs; ++v) ScoreTile<R, 1>(args, row, columns + v, scores + v * kLanes);
}

// Adds the weighted values of a run to R rows' outputs, V vectors of the head dimension wide,
// tokens in order.
template <int R, int V>
MR_INLINE void ValueTile(const AttentionArgs& args, const Run& run, int64_t row, int64_t column) {
  Vec sum[R][V];
  const float* weight[R];
  MR_UNROLL for (int r = 0; r < R; ++r) {
    weight[r] = args.scratch + (row + r) * kAttentionChunk + run.first * kKvBlock;
    MR_UNROLL for (int v = 0; v < V; ++v) {
      sum[r][v] = Load(args.rows[row + r].out + column + v * kLanes);
    }
  }
  for (int64_t t0 = 0; t0 < run.tokens; t0 += kKvBlock) {
    const float* values = args.values + run.blocks[t0 / kKvBlock] * args.block_stride + column;
    const int64_t t1 = Min(t0 + kKvBlock, run.tokens);
    for (int64_t t = t0; t < t1; ++t) {
      MR_UNROLL for (int v = 0; v < V; ++v) {
        const Vec value = Load(values + v * kLanes);
        __builtin_prefetch(values + args.ahead + v * kLanes, 0, 2);
        MR_UNROLL for (int r = 0; r < R; ++r) sum[r][v] += weight[r][t] * value;
      }
      values += args.head_dim;
    }
  }
  MR_UNROLL for (int r = 0; r < R; ++r) {
    MR_UNROLL for (int v = 0; v < V; ++v) {
      Store(args.rows[row + r].out + column + v * kLanes, sum[r][v]);
    }
  }
}

template <int R>
__attribute__((noinline)) void ValueRows(const AttentionArgs& args, const Run& run, int64_t row) {
  constexpr int kWide = kLanes == 16 ? 4 : 2;
  const int64_t head_dim = args.head_dim;
  int64_t c = 0;
  for (; c + kWide * kLanes <= head_dim; c += kWide * kLanes) {
    ValueTile<R, kWide>(args, run, row, c);
  }
  if (kWide > 2 && c + 2 * kLanes <= head_dim) {
    ValueTile<R, 2>(args, run, row, c);
    c += 2 * kLanes;
  }
  for (; c + kLanes <= head_dim; c += kLanes) ValueTile<R, 1>(args, run, row, c);
  for (; c < head_dim; ++c) {
    for (int r = 0; r < R; ++r) {
      const float* weight = args.scratch + (row + r) * kAttentionChunk + run.first * kKvBlock;
      float sum = args.rows[row + r].out[c];
      for (int64_t t = 0; t < run.tokens; ++t) {
        const int64_t block = run.blocks[t / kKvBlock] * args.block_stride;
        sum += weight[t] * args.values[block + t % kKvBlock * head_dim + c];
      }
      args.rows[row + r].out[c] = sum;
    }
  }
}

void RunScores(const AttentionArgs& args, const Run& run) {
  int64_t row = run.begin;
  for (; row + 4 <= run.end; row += 4) ScoreRows<4>(args, run, row);
  if (run.end - row == 3) ScoreRows<3>(args, run, row);
  if (run.end - row == 2) ScoreRows<2>(args, run, row);
  if (run.end - row == 1) ScoreRows<1>(args, run, row);
}

void RunValues(const AttentionArgs& args, const Run& run) {
  int64_t row = run.begin;
  for (; row + 4 <= run.end; row += 4) ValueRows<4>(args, run, row);
  if (run.end - row == 3) ValueRows<3>(args, run, row);
  if (run.end - row == 2) ValueRows<2>(args, run, row);
  if (run.end - row == 1) ValueRows<1>(args, run, row);
}

// The parts of one chunk: what all rows share, then each sequence's own tokens.
int64_t ChunkRuns(const AttentionArgs& args, int64_t chunk, Run* runs) {
  int64_t count = 0;
  int64_t own = args.shared_tokens - chunk;  // where the unshared part starts in the chunk
  if (own > kAttentionChunk) own = kAttentionChunk;
  if (own > 0) runs[count++] = {0, args.count, args.rows[0].blocks + chunk / kKvBlock, 0, own};
  if (own < 0) own = 0;
  if (own == kAttentionChunk) return count;
  for (int64_t begin = 0; begin < args.count;) {
    int64_t end = begin, longest = 0;
    while (end < args.count && args.rows[end].blocks == args.rows[begin].blocks) {
      if (args.rows[end].limit > longest) longest = args.rows[end].limit;
      ++end;
    }
    const int64_t tokens = Min(kAttentionChunk, longest - chunk) - own;
    int64_t first = begin;
    while (first < end && args.rows[first].limit <= chunk + own) ++first;
    if (tokens > 0 && first < end) {
      runs[count++] = {first, end, args.rows[begin].blocks + (chunk + own) / kKvBlock,
                       own / kKvBlock, tokens};
    }
    begin = end;
  }
  return count;
}

// One step of the online softmax (Milakov and Gimelshein 2018): weights relative to the row's
// largest score so far; what was summed before is scaled down when that grew.
void ChunkSoftmax(const AttentionArgs& args, int64_t row, int64_t chunk, int64_t padded) {
  const AttentionRow& target = args.rows[row];
  const int64_t n = Min(kAttentionChunk, target.limit - chunk);
  if (n <= 0) return;
  float* scores = args.scratch + row * kAttentionChunk;
  const int64_t hidden = Min(n, target.first - chunk);  // tokens before the window
  if (hidden == n) {
    for (int64_t i = 0; i < padded; ++i) scores[i] = 0.0f;
    return;
  }
  for (int64_t i = 0; i < hidden; ++i) scores[i] = -3e38f;
  float* highest = args.scratch + kAttentionRows * kAttentionChunk + row;
  float* total = highest + kAttentionRows;
  for (int64_t i = n; i % kLanes != 0; ++i) scores[i] = -3e38f;
  Vec best = Splat(*highest);
  for (int64_t i = 0; i < n; i += kLanes) best = Max(Load(scores + i), best);
  const float top = MaxLane(best);
  Vec sum = Vec{};
  for (int64_t i = 0; i < n; i += kLanes) {
    Vec p = Exp(Load(scores + i) - top);
    if (i + kLanes > n) p = LoadPart(reinterpret_cast<const float*>(&p), n - i, 0.0f);
    Store(scores + i, p);
    sum += p;
  }
  for (int64_t i = (n + kLanes - 1) / kLanes * kLanes; i < padded; ++i) scores[i] = 0.0f;
  for (int64_t i = 0; i < hidden; ++i) scores[i] = 0.0f;  // Exp leaves them a little above
  if (top > *highest) {
    const float shrink = Exp(Splat(*highest - top))[0];
    for (int64_t i = 0; i < args.head_dim; ++i) target.out[i] *= shrink;
    *total *= shrink;
  }
  *total += Sum(sum);
  *highest = top;
}

void Attention(const AttentionArgs& args) {
  float* highest = args.scratch + kAttentionRows * kAttentionChunk;
  float* total = highest + kAttentionRows;
  int64_t longest = 0, first = args.rows[0].first;
  for (int64_t r = 0; r < args.count; ++r) {
    highest[r] = -3e38f;
    total[r] = 0.0f;
    for (int64_t i = 0; i < args.head_dim; ++i) args.rows[r].out[i] = 0.0f;
    if (args.rows[r].limit > longest) longest = args.rows[r].limit;
    first = Min(first, args.rows[r].first);
  }
  // Chunks that are before every row's window are left out.
  const int64_t begin = first <= 0 ? 0 : first / kAttentionChunk * kAttentionChunk;
  for (int64_t chunk = begin; chunk < longest; chunk += kAttentionChunk) {
    Run runs[kAttentionRows + 1];
    const int64_t count = ChunkRuns(args, chunk, runs);
    const int64_t tokens = Min(kAttentionChunk, longest - chunk);
    const int64_t padded = (tokens + kKvBlock - 1) / kKvBlock * kKvBlock;
    for (int64_t i = 0; i < count; ++i) RunScores(args, runs[i]);
    for (int64_t r = 0; r < args.count; ++r) ChunkSoftmax(args, r, chunk, padded);
    for (int64_t i = 0; i < count; ++i) RunValues(args, runs[i]);
  }
  for (int64_t r = 0; r < args.count; ++r) {
    const float scale = 1.0f / total[r];
    for (int64_t i = 0; i < args.head_dim; ++i) args.rows[r].out[i] *= scale;
  }
}
