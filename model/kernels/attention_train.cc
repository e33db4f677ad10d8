#include "model/kernels/attention_train.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "model/kernels/parallel.h"
#include "model/kernels/train_tile.h"

namespace millrace {
namespace {

using Piece = TrainAttentionPlan::Piece;
using Node = TrainAttentionPlan::Node;
using Tree = TrainAttentionPlan::Tree;

constexpr int64_t kQueryBlock = 32;

// Buffers of one thread, grown and never shrunk.
class Scratch {
 public:
  // `count` buffers of the given sizes (floats), each on its own cache lines.
  void Carve(std::initializer_list<std::pair<float**, int64_t>> parts) {
    int64_t total = kTileLanes;
    for (const auto& [_, size] : parts) total += RoundUpToLanes(size) + kTileLanes;
    if (static_cast<int64_t>(memory_.size()) < total) memory_.resize(total);
    const auto base = reinterpret_cast<uintptr_t>(memory_.data());
    float* at = reinterpret_cast<float*>((base + 63) / 64 * 64);
    for (const auto& [pointer, size] : parts) {
      *pointer = at;
      at += RoundUpToLanes(size) + kTileLanes;
    }
  }

 private:
  std::vector<float> memory_;
};
thread_local Scratch scratch;

// What one (tree, kv head) works with. Rows and columns of keys are numbered within the tree;
// d = head_dim rounded up to lanes.
struct Work {
  const Tree* tree;
  TrainAttentionInput in;
  int64_t kv_head, d, columns, score_stride;
  float* keys_t;    // (head_dim, columns)
  float* values_t;  // (head_dim, columns), backward
  float* keys;      // (tokens, d), backward
  float* values;    // (tokens, d), forward
  float* scores;    // (kQueryBlock, score_stride)
  float* d_scores;  // as scores, backward
  float* result;    // (kQueryBlock, d)
  float* d_keys;    // (tokens, d), backward
  float* d_values;  // (tokens, d), backward

  const float* Query(int64_t row, int64_t head) const {
    return in.qk + row * in.qk_stride + head * in.head_dim;
  }
  const float* Key(int64_t row) const {
    return in.qk + row * in.qk_stride + (in.heads + kv_head) * in.head_dim;
  }
  const float* Value(int64_t row) const { return in.v + row * in.v_stride + kv_head * in.head_dim; }
};

// A run of queries of one segment and one head.
struct Block {
  const Node* node;
  int64_t head, begin, rows;  // begin: within the segment
  int64_t before;             // keys before the segment's own
  int64_t window;             // as in TrainAttentionInput
  int64_t skip = 0;           // keys that no query of the block sees, for the window
  const Piece& own() const { return node->keys.back(); }
  int64_t row() const { return own().row + begin; }
  // Query r of the block sees columns From(r) to Seen(r) of the block's scores.
  int64_t Seen(int64_t r) const { return before + begin + r + 1 - skip; }
  int64_t From(int64_t r) const { return window > 0 ? std::max<int64_t>(0, Seen(r) - window) : 0; }
  int64_t keys() const { return Seen(rows - 1); }
  // Calls f(row within the tree, length, column) for what the block sees of each piece.
  template <typename F>
  MILLRACE_SIMD_INLINE void ForEachPiece(F&& f) const {
    int64_t column = -skip;
    for (const Piece& p : node->keys) {
      const int64_t length = &p == &own() ? begin + rows : p.length;
      const int64_t hidden = std::max<int64_t>(0, -column);
      if (hidden < length) f(p.local + hidden, length - hidden, column + hidden);
      column += length;
    }
  }
};

int64_t LongestKeys(const Tree& tree) {
  int64_t longest = 0;
  for (const Node& n : tree.nodes) {
    int64_t keys = 0;
    for (const Piece& p : n.keys) keys += p.length;
    longest = std::max(longest, keys);
  }
  return longest;
}

Work MakeWork(const Tree& tree, const TrainAttentionInput& in, int64_t kv_head) {
  Work w{};
  w.tree = &tree;
  w.in = in;
  w.kv_head = kv_head;
  w.d = RoundUpToLanes(in.head_dim);
  // Tiles read and write up to two vectors past the last column.
  w.columns = RoundUpToLanes(tree.tokens) + kTileLanes;
  w.score_stride = RoundUpToLanes(LongestKeys(tree)) + kTileLanes;
  return w;
}

template <typename F>
MILLRACE_SIMD_INLINE void ForEachBlock(const Work& w, F&& f) {
  const int64_t repeat = w.in.heads / w.in.kv_heads;
  for (const Node& node : w.tree->nodes) {
    int64_t before = 0;
    for (const Piece& p : node.keys) before += p.length;
    const int64_t length = node.keys.back().length;
    before -= length;
    for (int64_t r = 0; r < repeat; ++r) {
      for (int64_t begin = 0; begin < length; begin += kQueryBlock) {
        Block block{&node,  w.kv_head * repeat + r,
                    begin,  std::min(kQueryBlock, length - begin),
                    before, w.in.window};
        block.skip = block.From(0);
        f(block);
      }
    }
  }
}

// Calls f(packed row, row within the tree).
template <typename F>
MILLRACE_SIMD_INLINE void ForEachRow(const Work& w, F&& f) {
  for (const Node& node : w.tree->nodes) {
    const Piece& own = node.keys.back();
    for (int64_t i = 0; i < own.length; ++i) f(own.row + i, own.local + i);
  }
}

MILLRACE_SIMD_INLINE void Scores(const Work& w, const Block& b) {
  const TileLeft queries{w.Query(b.row(), b.head), w.in.qk_stride, 1};
  b.ForEachPiece([&](int64_t local, int64_t length, int64_t column) MILLRACE_SIMD_LAMBDA {
    TileProduct({b.rows, length, w.in.head_dim}, queries, {w.keys_t + local, w.columns},
                {w.scores + column, w.score_stride}, false);
  });
}

// x[i] = exp(x[i] - shift) for i < seen, 0 from there to the next whole vector after `end`; returns
// the sum. Whole vectors only: what stands behind `seen` may be anything.
MILLRACE_SIMD_INLINE float Exponentials(float* x, int64_t seen, int64_t end, float shift) {
  float lanes[kTileLanes] = {};
  int64_t i = 0;
  for (; i + kTileLanes <= seen; i += kTileLanes) {
    for (int64_t j = 0; j < kTileLanes; ++j) {
      x[i + j] = FastExp(x[i + j] - shift);
      lanes[j] += x[i + j];
    }
  }
  for (; i < end; i += kTileLanes) {
    const int32_t left = static_cast<int32_t>(seen - i);
    for (int32_t j = 0; j < kTileLanes; ++j) {
      const float e = FastExp(x[i + j] - shift);
      x[i + j] = j < left ? e : 0.0f;
      lanes[j] += x[i + j];
    }
  }
  return SumLanes(lanes);
}

MILLRACE_SIMD_INLINE float Largest(const float* x, int64_t n) {
  float lanes[kTileLanes];
  for (float& lane : lanes) lane = x[0];
  for (int64_t i = 0; i < n; i += kTileLanes) {
    const int32_t left = static_cast<int32_t>(n - i);
    for (int32_t j = 0; j < kTileLanes; ++j) {
      const float v = j < left ? x[i + j] : lanes[j];
      lanes[j] = v > lanes[j] ? v : lanes[j];
    }
  }
  return MaxLanes(lanes);
}

MILLRACE_SIMD_CLONES void ForwardItem(const Work& w, float* out, float* log_sum) {
  const int64_t dim = w.in.head_dim;
  ForEachRow(w, [&](int64_t row, int64_t local) MILLRACE_SIMD_LAMBDA {
    const float *key = w.Key(row), *value = w.Value(row);
    for (int64_t i = 0; i < dim; ++i) w.keys_t[i * w.columns + local] = key[i];
    std::memcpy(w.values + local * w.d, value, dim * sizeof(float));
  });
  ForEachBlock(w, [&](const Block& b) MILLRACE_SIMD_LAMBDA {
    Scores(w, b);
    float scale[kQueryBlock];
    for (int64_t r = 0; r < b.rows; ++r) {
      const int64_t from = b.From(r);
      float* x = w.scores + r * w.score_stride;
      std::fill_n(x, from, 0.0f);
      const float max = Largest(x + from, b.Seen(r) - from);
      const float sum = Exponentials(x + from, b.Seen(r) - from, b.keys() - from, max);
      scale[r] = 1.0f / sum;
      log_sum[(b.row() + r) * w.in.heads + b.head] = max + std::log(sum);
    }
    b.ForEachPiece([&](int64_t local, int64_t length, int64_t column) MILLRACE_SIMD_LAMBDA {
      TileProduct({b.rows, dim, length}, {w.scores + column, w.score_stride, 1},
                  {w.values + local * w.d, w.d}, {w.result, w.d}, column > 0);
    });
    for (int64_t r = 0; r < b.rows; ++r) {
      float* to = out + (b.row() + r) * w.in.heads * dim + b.head * dim;
      for (int64_t i = 0; i < dim; ++i) to[i] = w.result[r * w.d + i] * scale[r];
    }
  });
}

MILLRACE_SIMD_INLINE float InnerProduct(const float* a, const float* b, int64_t n) {
  float lanes[kTileLanes] = {};
  const int64_t whole = n / kTileLanes * kTileLanes;
  for (int64_t i = 0; i < whole; i += kTileLanes) {
    for (int64_t j = 0; j < kTileLanes; ++j) lanes[j] += a[i + j] * b[i + j];
  }
  float sum = 0;
  for (int64_t i = whole; i < n; ++i) sum += a[i] * b[i];
  return sum + SumLanes(lanes);
}

// scores = softmax, d_scores = gradient of the scores of the block.
MILLRACE_SIMD_INLINE void ScoreGradients(const Work& w, const Block& b,
                                         const TrainAttentionGradient& g) {
  const int64_t dim = w.in.head_dim, width = w.in.heads * dim;
  const float* d_out = g.d_out + b.row() * width + b.head * dim;
  Scores(w, b);
  b.ForEachPiece([&](int64_t local, int64_t length, int64_t column) MILLRACE_SIMD_LAMBDA {
    TileProduct({b.rows, length, dim}, {d_out, width, 1}, {w.values_t + local, w.columns},
                {w.d_scores + column, w.score_stride}, false);
  });
  for (int64_t r = 0; r < b.rows; ++r) {
    const float* out = g.out + (b.row() + r) * width + b.head * dim;
    const float inner = InnerProduct(out, d_out + r * width, dim);
    float *x = w.scores + r * w.score_stride, *dx = w.d_scores + r * w.score_stride;
    const int64_t from = b.From(r);
    std::fill_n(x, from, 0.0f);
    Exponentials(x + from, b.Seen(r) - from, b.keys() - from,
                 g.log_sum[(b.row() + r) * w.in.heads + b.head]);
    const int32_t seen = static_cast<int32_t>(b.Seen(r)), keys = static_cast<int32_t>(b.keys());
    for (int32_t i = 0; i < keys; ++i) {
      const float d = x[i] * (dx[i] - inner);
      dx[i] = i < seen ? d : 0.0f;
    }
  }
}

MILLRACE_SIMD_CLONES void BackwardItem(const Work& w, const TrainAttentionGradient& g) {
  const int64_t dim = w.in.head_dim, width = w.in.heads * dim;
  ForEachRow(w, [&](int64_t row, int64_t local) MILLRACE_SIMD_LAMBDA {
    const float *key = w.Key(row), *value = w.Value(row);
    for (int64_t i = 0; i < dim; ++i) {
      w.keys_t[i * w.columns + local] = key[i];
      w.values_t[i * w.columns + local] = value[i];
    }
    std::memcpy(w.keys + local * w.d, key, dim * sizeof(float));
  });
  std::fill_n(w.d_keys, w.tree->tokens * w.d, 0.0f);
  std::fill_n(w.d_values, w.tree->tokens * w.d, 0.0f);
  ForEachBlock(w, [&](const Block& b) MILLRACE_SIMD_LAMBDA {
    ScoreGradients(w, b, g);
    const TileRows d_out{g.d_out + b.row() * width + b.head * dim, width};
    const TileRows queries{w.Query(b.row(), b.head), w.in.qk_stride};
    b.ForEachPiece([&](int64_t local, int64_t length, int64_t column) MILLRACE_SIMD_LAMBDA {
      TileProduct({length, dim, b.rows}, {w.scores + column, 1, w.score_stride}, d_out,
                  {w.d_values + local * w.d, w.d}, true);
      TileProduct({length, dim, b.rows}, {w.d_scores + column, 1, w.score_stride}, queries,
                  {w.d_keys + local * w.d, w.d}, true);
      TileProduct({b.rows, dim, length}, {w.d_scores + column, w.score_stride, 1},
                  {w.keys + local * w.d, w.d}, {w.result, w.d}, column > 0);
    });
    for (int64_t r = 0; r < b.rows; ++r) {
      std::memcpy(g.d_qkv + (b.row() + r) * g.d_qkv_stride + b.head * dim, w.result + r * w.d,
                  dim * sizeof(float));
    }
  });
  ForEachRow(w, [&](int64_t row, int64_t local) MILLRACE_SIMD_LAMBDA {
    float* to = g.d_qkv + row * g.d_qkv_stride + (w.in.heads + w.kv_head) * dim;
    std::memcpy(to, w.d_keys + local * w.d, dim * sizeof(float));
    std::memcpy(to + w.in.kv_heads * dim, w.d_values + local * w.d, dim * sizeof(float));
  });
}

// Runs f(tree, kv head) for all of them; a thread takes the next when it is done with one.
template <typename F>
void ForEachItem(const TrainAttentionPlan& plan, int64_t kv_heads, const F& f) {
  const int64_t items = static_cast<int64_t>(plan.trees.size()) * kv_heads;
  std::atomic<int64_t> next{0};
  at::parallel_for(0, at::get_num_threads(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = next++; i < items; i = next++) f(plan.trees[i / kv_heads], i % kv_heads);
  });
}

}  // namespace

TrainAttentionPlan PlanTrainAttention(const PackedBatch& batch) {
  TrainAttentionPlan plan;
  std::vector<std::pair<size_t, size_t>> where;  // tree and node of each segment
  for (const Segment& s : batch.segments) {
    if (s.prefix < 0) plan.trees.emplace_back();
    const size_t t = s.prefix < 0 ? plan.trees.size() - 1 : where[s.prefix].first;
    Tree& tree = plan.trees[t];
    Node node;
    if (s.prefix >= 0) node.keys = tree.nodes[where[s.prefix].second].keys;
    node.keys.push_back({s.begin, tree.tokens, s.end - s.begin});
    tree.tokens += s.end - s.begin;
    where.emplace_back(t, tree.nodes.size());
    tree.nodes.push_back(std::move(node));
  }
  return plan;
}

void TrainAttentionForward(const TrainAttentionPlan& plan, const TrainAttentionInput& in,
                           float* out, float* log_sum) {
  ForEachItem(plan, in.kv_heads, [&](const Tree& tree, int64_t kv_head) {
    Work w = MakeWork(tree, in, kv_head);
    scratch.Carve({{&w.keys_t, in.head_dim * w.columns},
                   {&w.values, tree.tokens * w.d},
                   {&w.scores, kQueryBlock * w.score_stride},
                   {&w.result, kQueryBlock * w.d}});
    ForwardItem(w, out, log_sum);
  });
}

void TrainAttentionBackward(const TrainAttentionPlan& plan, const TrainAttentionInput& in,
                            const TrainAttentionGradient& gradient) {
  ForEachItem(plan, in.kv_heads, [&](const Tree& tree, int64_t kv_head) {
    Work w = MakeWork(tree, in, kv_head);
    scratch.Carve({{&w.keys_t, in.head_dim * w.columns},
                   {&w.values_t, in.head_dim * w.columns},
                   {&w.keys, tree.tokens * w.d},
                   {&w.d_keys, tree.tokens * w.d},
                   {&w.d_values, tree.tokens * w.d},
                   {&w.scores, kQueryBlock * w.score_stride},
                   {&w.d_scores, kQueryBlock * w.score_stride},
                   {&w.result, kQueryBlock * w.d}});
    BackwardItem(w, gradient);
  });
}

}  // namespace millrace
