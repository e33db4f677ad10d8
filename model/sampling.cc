#include "model/sampling.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/kernels/decode_kernels.h"

namespace millrace {
namespace {

constexpr int64_t kBlock = 1024;  // logits looked at together; they stay in the first-level cache
constexpr int kBuckets = 512;     // of the gap to the largest logit, for top-k and top-p
constexpr float kBucketsPerNat = 8;  // so that they reach 64 nats down
constexpr float kBelowOne = 0x1.fffffep-1f;

uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// One row of logits and what one sweep over it finds.
struct RowSweep {
  const float* x = nullptr;
  int64_t n = 0;
  float scale = 1;               // 1 / temperature
  float top = 0;                 // largest logit
  double total = 0;              // sum of exp(scale * (x - top))
  std::vector<float> reference;  // largest logit of a block
  std::vector<double> weight;    // its share of `total`
};

void Sweep(const decode::Kernels& kernels, RowSweep* row) {
  const int64_t blocks = (row->n + kBlock - 1) / kBlock;
  row->reference.resize(blocks);
  row->weight.resize(blocks);
  row->top = std::numeric_limits<float>::lowest();
  for (int64_t b = 0; b < blocks; ++b) {
    const float* x = row->x + b * kBlock;
    const int64_t n = std::min(kBlock, row->n - b * kBlock);
    const float top = std::max(kernels.max(x, n), std::numeric_limits<float>::lowest());
    row->reference[b] = top;
    row->weight[b] = kernels.exp_sum(x, n, row->scale, top, nullptr);
    row->top = std::max(row->top, top);
  }
  row->total = 0;
  for (int64_t b = 0; b < blocks; ++b) {
    row->weight[b] *= std::exp(static_cast<double>(row->scale) *
                               (static_cast<double>(row->reference[b]) - row->top));
    row->total += row->weight[b];
  }
}

SampledToken Greedy(const RowSweep& row) {
  SampledToken token;
  for (size_t b = 0; b < row.reference.size(); ++b) {
    if (row.reference[b] != row.top) continue;
    const float* begin = row.x + b * kBlock;
    const float* end = row.x + std::min<int64_t>(row.n, (b + 1) * kBlock);
    token.id = static_cast<int32_t>(std::find(begin, end, row.top) - row.x);
    break;
  }
  if (token.id >= row.n) token.id = 0;
  token.logprob = static_cast<float>(-std::log(row.total));
  return token;
}

SampledToken DrawUnfiltered(const decode::Kernels& kernels, const RowSweep& row, double uniform) {
  double target = uniform * row.total;
  size_t block = 0;
  while (block + 1 < row.weight.size() && target >= row.weight[block]) {
    target -= row.weight[block++];
  }
  const int64_t first = static_cast<int64_t>(block) * kBlock;
  const int64_t n = std::min(kBlock, row.n - first);
  float weights[kBlock];
  const double sum = kernels.exp_sum(row.x + first, n, row.scale, row.reference[block], weights);
  target *= sum / row.weight[block];
  int64_t last = 0;  // a token that rounding at the end of the block falls back to
  int64_t i = 0;
  for (; i < n; ++i) {
    if (weights[i] > 0) last = i;
    target -= weights[i];
    if (target < 0) break;
  }
  if (i == n) i = last;
  SampledToken token;
  token.id = static_cast<int32_t>(first + i);
  token.logprob = static_cast<float>(static_cast<double>(row.scale) *
                                         (static_cast<double>(row.x[token.id]) - row.top) -
                                     std::log(row.total));
  return token;
}

struct Candidate {
  int32_t id;
  float logit;
  float weight;
};

int BucketOf(const RowSweep& row, float logit) {
  const float gap = (row.top - logit) * row.scale * kBucketsPerNat;
  return gap < kBuckets - 1 ? static_cast<int>(gap) : kBuckets - 1;
}

bool Larger(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// The candidates that top-k leaves (those that tie with the k-th too), in order of ids. Only one
// bucket is looked at closely.
std::vector<Candidate> TopK(const RowSweep& row, const std::vector<float>& weights, int64_t k) {
  int64_t counts[kBuckets] = {};
  for (int64_t i = 0; i < row.n; ++i) ++counts[BucketOf(row, row.x[i])];
  int bucket = 0;
  int64_t above = 0;
  while (bucket < kBuckets - 1 && above + counts[bucket] < k) above += counts[bucket++];
  std::vector<float> inside;
  for (int64_t i = 0; i < row.n; ++i) {
    if (BucketOf(row, row.x[i]) == bucket) inside.push_back(row.x[i]);
  }
  const int64_t rank = std::clamp<int64_t>(k - above, 1, static_cast<int64_t>(inside.size())) - 1;
  std::nth_element(inside.begin(), inside.begin() + rank, inside.end(), std::greater<float>());
  std::vector<Candidate> kept;
  for (int64_t i = 0; i < row.n; ++i) {
    if (row.x[i] >= inside[rank]) kept.push_back({static_cast<int32_t>(i), row.x[i], weights[i]});
  }
  return kept;
}

// Everything down to the bucket in which the mass `top_p` is reached, in order of ids.
std::vector<Candidate> NucleusBuckets(const RowSweep& row, const std::vector<float>& weights,
                                      double top_p) {
  double mass[kBuckets] = {};
  double total = 0;
  for (int64_t i = 0; i < row.n; ++i) mass[BucketOf(row, row.x[i])] += weights[i];
  for (double m : mass) total += m;
  int bucket = 0;
  double above = 0;
  while (bucket < kBuckets - 1 && above + mass[bucket] < top_p * total) above += mass[bucket++];
  std::vector<Candidate> kept;
  for (int64_t i = 0; i < row.n; ++i) {
    if (BucketOf(row, row.x[i]) <= bucket) {
      kept.push_back({static_cast<int32_t>(i), row.x[i], weights[i]});
    }
  }
  return kept;
}

// Drops the candidates before which (largest first) at least `top_p` of `total` lies.
void CutNucleus(double top_p, double total, std::vector<Candidate>* candidates) {
  std::vector<Candidate> sorted = *candidates;
  std::sort(sorted.begin(), sorted.end(), Larger);
  double before = 0;
  size_t keep = 0;
  while (keep < sorted.size() && (keep == 0 || before < top_p * total)) {
    before += sorted[keep++].weight;
  }
  const Candidate least = sorted[keep - 1];
  candidates->erase(std::remove_if(candidates->begin(), candidates->end(),
                                   [&](const Candidate& c) { return Larger(least, c); }),
                    candidates->end());
}

double TotalWeight(const std::vector<Candidate>& candidates) {
  double total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  return total;
}

SampledToken DrawFiltered(const decode::Kernels& kernels, const RowSweep& row,
                          const SamplingParams& params, double uniform) {
  std::vector<float> weights(row.n);
  kernels.exp_sum(row.x, row.n, row.scale, row.top, weights.data());
  const bool use_p = params.top_p < 1;
  std::vector<Candidate> kept;
  if (params.top_k > 0 && params.top_k < row.n) {
    kept = TopK(row, weights, params.top_k);
    if (use_p) CutNucleus(params.top_p, TotalWeight(kept), &kept);
  } else {
    kept = NucleusBuckets(row, weights, params.top_p);
    if (use_p) CutNucleus(params.top_p, row.total, &kept);
  }
  const double total = TotalWeight(kept);
  double target = uniform * total;
  size_t i = 0;
  for (; i + 1 < kept.size(); ++i) {
    target -= kept[i].weight;
    if (target < 0) break;
  }
  SampledToken token;
  token.id = kept[i].id;
  token.logprob = static_cast<float>(static_cast<double>(row.scale) *
                                         (static_cast<double>(kept[i].logit) - row.top) -
                                     std::log(total));
  return token;
}

SampledToken DrawRow(const float* x, int64_t n, const SampleRow& wanted) {
  const decode::Kernels& kernels = decode::BestKernels();
  const SamplingParams& params = wanted.params;
  RowSweep row;
  row.x = x;
  row.n = n;
  row.scale = params.temperature > 0 ? 1.0f / params.temperature : 1.0f;
  Sweep(kernels, &row);
  if (params.temperature <= 0 || !std::isfinite(row.total)) return Greedy(row);
  const double uniform = UniformAt(wanted.stream, wanted.position);
  if ((params.top_k > 0 && params.top_k < n) || params.top_p < 1) {
    return DrawFiltered(kernels, row, params, uniform);
  }
  return DrawUnfiltered(kernels, row, uniform);
}

// Filters of all rows on the device, by a full sort.
at::Tensor FilterOnDevice(const at::Tensor& scaled, const at::Tensor& top_k,
                          const at::Tensor& top_p) {
  auto [sorted, order] = scaled.sort(-1, /*descending=*/true);
  const at::Tensor kth = sorted.gather(1, top_k);
  const double none = -std::numeric_limits<double>::infinity();
  sorted = sorted.masked_fill(sorted < kth, none);
  const at::Tensor p = at::softmax(sorted, -1);
  const at::Tensor before = p.cumsum(-1) - p;
  at::Tensor drop = before >= top_p;
  drop.narrow(1, 0, 1).fill_(false);
  sorted = sorted.masked_fill(drop.logical_and(top_p < 1), none);
  return at::empty_like(scaled).scatter_(1, order, sorted);
}

std::vector<SampledToken> SampleOnDevice(const at::Tensor& logits,
                                         absl::Span<const SampleRow> rows) {
  const int64_t count = static_cast<int64_t>(rows.size()), vocab = logits.size(1);
  at::Tensor host = at::empty({count, 5}, at::kFloat);
  float* h = host.data_ptr<float>();
  bool filtered = false;
  for (int64_t r = 0; r < count; ++r, h += 5) {
    const SamplingParams& params = rows[r].params;
    const bool greedy = params.temperature <= 0;
    const bool k = !greedy && params.top_k > 0 && params.top_k < vocab;
    const bool p = !greedy && params.top_p < 1;
    filtered = filtered || k || p;
    h[0] = greedy ? 1.0f : 1.0f / params.temperature;
    h[1] = greedy ? 1.0f : 0.0f;
    h[2] = std::min(static_cast<float>(UniformAt(rows[r].stream, rows[r].position)), kBelowOne);
    h[3] = static_cast<float>(k ? params.top_k : vocab) - 1;
    h[4] = p ? params.top_p : 1.0f;
  }
  const at::Tensor device = host.to(logits.device(), /*non_blocking=*/true);
  const auto column = [&](int64_t c) { return device.narrow(1, c, 1); };
  at::Tensor scaled = logits * column(0);
  if (filtered) scaled = FilterOnDevice(scaled, column(3).to(at::kLong), column(4));
  const at::Tensor logp = at::log_softmax(scaled, -1);
  const at::Tensor cdf = logp.exp().cumsum(-1);
  const at::Tensor target = column(2) * cdf.narrow(1, vocab - 1, 1);
  const at::Tensor drawn = (cdf <= target).sum(-1, true).clamp_max(vocab - 1);
  const at::Tensor id = at::where(column(1) > 0.5, scaled.argmax(-1, true), drawn);
  const at::Tensor both = at::cat({id.to(at::kDouble), logp.gather(1, id).to(at::kDouble)}, 1);
  const at::Tensor result = both.cpu();
  const double* out = result.data_ptr<double>();
  std::vector<SampledToken> tokens(count);
  for (int64_t r = 0; r < count; ++r) {
    tokens[r] = {static_cast<int32_t>(out[2 * r]), static_cast<float>(out[2 * r + 1])};
  }
  return tokens;
}

}  // namespace

std::vector<SampledToken> Sample(at::Tensor& logits, absl::Span<const SampleRow> rows,
                                 ComputePool* pool) {
  if (rows.empty()) return {};
  if (!logits.device().is_cpu()) return SampleOnDevice(logits, rows);
  const at::Tensor dense = logits.contiguous();
  const float* x = dense.data_ptr<float>();
  const int64_t vocab = dense.size(1);
  std::vector<SampledToken> tokens(rows.size());
  const auto draw = [&](int64_t r) { tokens[r] = DrawRow(x + r * vocab, vocab, rows[r]); };
  if (pool == nullptr) {
    for (size_t r = 0; r < rows.size(); ++r) draw(static_cast<int64_t>(r));
  } else {
    pool->Run([&](PoolWorker& worker) { worker.For(static_cast<int64_t>(rows.size()), draw); });
  }
  return tokens;
}

uint64_t SampleStream(uint64_t seed, uint32_t index) {
  return Mix(Mix(seed) ^ (static_cast<uint64_t>(index) + 1));
}

double UniformAt(uint64_t stream, uint64_t position) {
  return static_cast<double>(Mix(Mix(stream) + position) >> 11) * 0x1.0p-53;
}

}  // namespace millrace
