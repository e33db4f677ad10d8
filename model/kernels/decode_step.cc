#include "model/kernels/decode_step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <unordered_map>

namespace millrace::decode {
namespace {

constexpr int64_t kRowItem = 4;  // rows of one item of the loops over rows
constexpr int64_t kScratch = kAttentionRows * (kAttentionChunk + 2);

int64_t Padded(int64_t width) { return (width + 15) / 16 * 16 + 16; }

const float* Data(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

// Buffers (rows, widths[i]), each on a cache line: a vector that lies across two costs twice.
std::unique_ptr<HugeArena> Allocate(int64_t rows, absl::Span<const int64_t> widths,
                                    absl::Span<float** const> buffers) {
  int64_t bytes = 0;
  for (int64_t width : widths) bytes += HugeArena::RoundedBytes(rows * width);
  auto arena = std::make_unique<HugeArena>(bytes);
  for (size_t i = 0; i < widths.size(); ++i) *buffers[i] = arena->Take(rows * widths[i]);
  return arena;
}

// The values of `view`, in memory of `*copy`'s own.
void CopyInto(const ParameterPieces& pieces, const at::Tensor& view, at::Tensor* copy) {
  if (!view.defined()) return;
  if (!copy->defined() || copy->is_alias_of(view)) *copy = at::empty_like(view);
  float* to = copy->data_ptr<float>();
  for (absl::Span<const float> values : pieces.Of(view)) {
    to = std::copy(values.begin(), values.end(), to);
  }
}

int64_t Items(int64_t rows) { return (rows + kRowItem - 1) / kRowItem; }

}  // namespace

FusedStep::FusedStep(const ModelConfig& config, const ModelWeights& weights, ComputeType compute,
                     KvCache* cache, ComputePool* pool)
    : config_(config),
      weights_(weights),
      cache_(cache),
      pool_(pool),
      kernels_(&BestKernels()),
      compute_(compute),
      q_size_(config.heads * config.head_dim),
      kv_size_(config.kv_heads * config.head_dim),
      normed_width_(Padded(config.hidden_size)),
      attended_width_(Padded(q_size_)),
      activated_width_(Padded(config.intermediate_size)) {
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const int64_t qkv = q_size_ + 2 * kv_size_;
  const PackedMatrix::Shape shapes[] = {{qkv, hidden, false, compute},
                                        {hidden, q_size_, false, compute},
                                        {2 * inner, hidden, true, compute},
                                        {hidden, inner, false, compute}};
  const PackedMatrix::Shape head = {config.vocab_size, hidden, false, compute};
  int64_t layer_bytes = 0;
  for (const PackedMatrix::Shape& shape : shapes) layer_bytes += PackedMatrix::Bytes(shape);
  arena_ = std::make_unique<HugeArena>(config.layers * layer_bytes + PackedMatrix::Bytes(head));
  HugeArena* arena = arena_.get();
  for (int64_t l = 0; l < config.layers; ++l) {
    layers_.push_back(std::unique_ptr<Layer>(
        new Layer{PackedMatrix(shapes[0], arena), PackedMatrix(shapes[1], arena),
                  PackedMatrix(shapes[2], arena), PackedMatrix(shapes[3], arena)}));
  }
  head_ = std::make_unique<PackedMatrix>(head, arena);
  scratch_memory_ =
      std::make_unique<HugeArena>(HugeArena::RoundedBytes(pool->threads() * kScratch));
  scratch_ = scratch_memory_->Take(pool->threads() * kScratch);
}

void FusedStep::PackFrom(const Source& source) {
  pool_->Run([&](PoolWorker& worker) {
    for (size_t l = 0; l < layers_.size(); ++l) {
      const LayerWeights& from = weights_.layers[l];
      layers_[l]->qkv.Pack(worker, source(from.qkv_weight, from.qkv_bias));
      layers_[l]->o.Pack(worker, source(from.o_weight, from.o_bias));
      layers_[l]->gate_up.Pack(worker, source(from.gate_up_weight, {}));
      layers_[l]->down.Pack(worker, source(from.down_weight, {}));
    }
    head_->Pack(worker, source(weights_.lm_head, {}));
  });
}

ModelWeights FusedStep::CopyUnpacked(const ParameterPieces& pieces) {
  ModelWeights copies = unpacked_;
  copies.layers.resize(layers_.size());
  CopyInto(pieces, weights_.embed, &copies.embed);
  CopyInto(pieces, weights_.final_norm, &copies.final_norm);
  for (size_t l = 0; l < layers_.size(); ++l) {
    const LayerWeights& from = weights_.layers[l];
    LayerWeights& to = copies.layers[l];
    CopyInto(pieces, from.input_norm, &to.input_norm);
    CopyInto(pieces, from.post_norm, &to.post_norm);
    CopyInto(pieces, from.q_norm, &to.q_norm);
    CopyInto(pieces, from.k_norm, &to.k_norm);
  }
  return copies;
}

void FusedStep::Pack() {
  PackFrom([](const at::Tensor& weight, const at::Tensor& bias) {
    return std::vector<PackedMatrix::Rows>{{Data(weight), Data(bias), weight.size(0)}};
  });
  unpacked_ = weights_;
}

void FusedStep::Pack(const ParameterPieces& pieces) {
  ModelWeights copies = CopyUnpacked(pieces);  // what can fail comes first
  PackFrom([&pieces](const at::Tensor& weight, const at::Tensor& bias) {
    std::vector<PackedMatrix::Rows> parts;
    const std::vector<absl::Span<const float>> biases = pieces.Of(bias);
    for (absl::Span<const float> values : pieces.Of(weight)) {
      const float* its_bias = biases.empty() ? nullptr : biases[parts.size()].data();
      const int64_t count = static_cast<int64_t>(values.size()) / weight.size(1);
      parts.push_back({values.data(), its_bias, count});
    }
    return parts;
  });
  unpacked_ = std::move(copies);
}

float* FusedStep::Run(absl::Span<const StepSequence> sequences, int64_t* logit_rows) {
  Plan(sequences);
  GrowBuffers();
  if (!rows_.empty()) pool_->Run([&](PoolWorker& worker) { Program(worker); });
  *logit_rows = static_cast<int64_t>(logit_rows_.size());
  return logits_;
}

void FusedStep::Plan(absl::Span<const StepSequence> sequences) {
  rows_.clear();
  logit_rows_.clear();
  int64_t positions = 0;
  for (const StepSequence& sequence : sequences) {
    const int64_t count = static_cast<int64_t>(sequence.tokens.size());
    const int64_t first = sequence.kv->length() - count;
    for (int64_t i = 0; i < count; ++i) {
      rows_.push_back({sequence.tokens[i], first + i, sequence.kv->blocks().data()});
    }
    if (sequence.want_logits && count > 0) {
      logit_rows_.push_back(static_cast<int64_t>(rows_.size()) - 1);
    }
    positions = std::max(positions, sequence.kv->length());
  }
  GrowAngles(positions);
  PlanTasks(sequences);
}

void FusedStep::PlanTasks(absl::Span<const StepSequence> sequences) {
  tasks_.clear();
  const int64_t most = std::max<int64_t>(1, kAttentionRows / (config_.heads / config_.kv_heads));
  std::vector<std::pair<int64_t, const StepSequence*>> single;  // row, sequence
  int64_t row = 0;
  for (const StepSequence& sequence : sequences) {
    const int64_t count = static_cast<int64_t>(sequence.tokens.size());
    if (count == 1) single.push_back({row, &sequence});
    for (int64_t i = 0; count > 1 && i < count; i += most) {
      Task& task = tasks_.emplace_back();
      task.rows.resize(std::min(most, count - i));
      std::iota(task.rows.begin(), task.rows.end(), row + i);
    }
    row += count;
  }
  // Long tasks first; then members of one group, which share their first block, in the order of
  // their first rows.
  std::reverse(tasks_.begin(), tasks_.end());
  std::unordered_map<int32_t, size_t> order;
  for (const auto& [r, sequence] : single) {
    order.emplace(sequence->kv->blocks().front(), order.size());
  }
  std::stable_sort(single.begin(), single.end(), [&](const auto& a, const auto& b) {
    return order[a.second->kv->blocks().front()] < order[b.second->kv->blocks().front()];
  });
  for (size_t i = 0; i < single.size();) {
    const KvSequence& leader = *single[i].second->kv;
    Task& task = tasks_.emplace_back();
    // Blocks that all rows so far share and fill.
    int64_t shared = leader.length() / kKvBlock;
    for (; i < single.size() && static_cast<int64_t>(task.rows.size()) < most; ++i) {
      const KvSequence& kv = *single[i].second->kv;
      if (kv.blocks().front() != leader.blocks().front()) break;
      const int64_t full = std::min(shared, kv.length() / kKvBlock);
      const auto end =
          std::mismatch(kv.blocks().begin(), kv.blocks().begin() + full, leader.blocks().begin());
      shared = end.first - kv.blocks().begin();
      task.rows.push_back(single[i].first);
    }
    task.shared_tokens = task.rows.size() > 1 ? shared * kKvBlock : 0;
  }
}

void FusedStep::GrowBuffers() {
  const int64_t rows = static_cast<int64_t>(rows_.size());
  const int64_t logit_rows = static_cast<int64_t>(logit_rows_.size());
  const int64_t hidden = config_.hidden_size, qkv = q_size_ + 2 * kv_size_;
  if (rows > row_capacity_) {
    row_capacity_ = rows;
    // Two bf16 to a float, of the widest factor.
    const int64_t rounded = std::max({normed_width_, attended_width_, activated_width_}) / 2;
    const int64_t widths[] = {hidden,          normed_width_,    qkv,
                              attended_width_, activated_width_, rounded};
    float** const buffers[] = {&x_, &normed_, &qkv_, &attended_, &activated_, &rounded_};
    row_memory_ = Allocate(rows, widths, buffers);
  }
  if (logit_rows > logit_capacity_) {
    logit_capacity_ = logit_rows;
    const int64_t widths[] = {normed_width_, config_.vocab_size};
    float** const buffers[] = {&last_, &logits_};
    logit_memory_ = Allocate(logit_rows, widths, buffers);
  }
}

void FusedStep::GrowAngles(int64_t positions) {
  if (positions <= angle_positions_) return;
  positions = std::max(positions, 2 * angle_positions_);
  const int64_t half = config_.head_dim / 2;
  cos_.resize(positions * half);
  sin_.resize(positions * half);
  const std::vector<double> frequencies = RopeFrequencies(config_.rope, config_.head_dim);
  const double factor = config_.rope.attention_factor;
  for (int64_t i = 0; i < half; ++i) {
    for (int64_t p = angle_positions_; p < positions; ++p) {
      const double angle = static_cast<double>(p) * frequencies[i];
      cos_[p * half + i] = static_cast<float>(std::cos(angle) * factor);
      sin_[p * half + i] = static_cast<float>(std::sin(angle) * factor);
    }
  }
  angle_positions_ = positions;
}

void FusedStep::Program(PoolWorker& worker) {
  int64_t rows = static_cast<int64_t>(rows_.size());
  const int64_t wanted = static_cast<int64_t>(logit_rows_.size());
  const int64_t hidden = config_.hidden_size;
  const float* embed = Data(unpacked_.embed);
  uint16_t* rounded = reinterpret_cast<uint16_t*>(rounded_);
  worker.For(Items(rows), [&](int64_t item) {
    for (int64_t r = item * kRowItem; r < std::min(rows, (item + 1) * kRowItem); ++r) {
      std::memcpy(x_ + r * hidden, embed + rows_[r].token * hidden, hidden * sizeof(float));
    }
  });
  for (size_t l = 0; l < layers_.size(); ++l) {
    const LayerWeights& weights = unpacked_.layers[l];
    const Layer& layer = *layers_[l];
    Norm(worker, Data(weights.input_norm), rows);
    layer.qkv.Multiply(
        worker, {normed_, rounded, normed_width_, rows, qkv_, q_size_ + 2 * kv_size_, false});
    Heads(worker, static_cast<int64_t>(l));
    const bool last = l + 1 == layers_.size();
    if (last && wanted == 0) return;  // the cache is filled
    Attend(worker, static_cast<int64_t>(l));
    if (last && wanted < rows) {
      worker.For(1, [&](int64_t) { KeepWantedRows(); });
      rows = wanted;
    }
    layer.o.Multiply(worker, {attended_, rounded, attended_width_, rows, x_, hidden, true});
    Norm(worker, Data(weights.post_norm), rows);
    layer.gate_up.Multiply(
        worker, {normed_, rounded, normed_width_, rows, activated_, activated_width_, false});
    layer.down.Multiply(worker, {activated_, rounded, activated_width_, rows, x_, hidden, true});
  }
  const float* norm = Data(unpacked_.final_norm);
  worker.For(wanted, [&](int64_t r) {
    kernels_->rms_norm(x_ + r * hidden, norm, static_cast<float>(config_.rms_norm_eps), hidden,
                       last_ + r * normed_width_);
  });
  head_->Multiply(worker,
                  {last_, rounded, normed_width_, wanted, logits_, config_.vocab_size, false});
}

// After the last layer's attention only the rows that logits are made of go on.
void FusedStep::KeepWantedRows() {
  for (size_t r = 0; r < logit_rows_.size(); ++r) {
    const int64_t from = logit_rows_[r];
    std::memmove(x_ + r * config_.hidden_size, x_ + from * config_.hidden_size,
                 config_.hidden_size * sizeof(float));
    std::memmove(attended_ + r * attended_width_, attended_ + from * attended_width_,
                 q_size_ * sizeof(float));
  }
}

void FusedStep::Norm(PoolWorker& worker, const float* weight, int64_t rows) {
  const int64_t hidden = config_.hidden_size;
  const float eps = static_cast<float>(config_.rms_norm_eps);
  worker.For(Items(rows), [&](int64_t item) {
    for (int64_t r = item * kRowItem; r < std::min(rows, (item + 1) * kRowItem); ++r) {
      kernels_->rms_norm(x_ + r * hidden, weight, eps, hidden, normed_ + r * normed_width_);
    }
  });
}

void FusedStep::Heads(PoolWorker& worker, int64_t layer) {
  const int64_t rows = static_cast<int64_t>(rows_.size());
  const int64_t half = config_.head_dim / 2, block_floats = kv_size_ * kKvBlock;
  float* keys = cache_->keys(layer).data_ptr<float>();
  float* values = cache_->values(layer).data_ptr<float>();
  QkvArgs args;
  args.heads = config_.heads;
  args.kv_heads = config_.kv_heads;
  args.head_dim = config_.head_dim;
  args.q_norm = Data(unpacked_.layers[layer].q_norm);
  args.k_norm = Data(unpacked_.layers[layer].k_norm);
  args.eps = static_cast<float>(config_.rms_norm_eps);
  args.scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim));
  worker.For(Items(rows), [&](int64_t item) {
    QkvArgs row = args;
    for (int64_t r = item * kRowItem; r < std::min(rows, (item + 1) * kRowItem); ++r) {
      const int64_t position = rows_[r].position, slot = position % kKvBlock;
      const int64_t block = rows_[r].blocks[position / kKvBlock];
      row.qkv = qkv_ + r * (q_size_ + 2 * kv_size_);
      row.cos = cos_.data() + position * half;
      row.sin = sin_.data() + position * half;
      row.keys = keys + block * block_floats + slot;
      row.values = values + block * block_floats + slot * config_.head_dim;
      kernels_->qkv(row);
    }
  });
}

void FusedStep::Attend(PoolWorker& worker, int64_t layer) {
  const int64_t per_kv = config_.heads / config_.kv_heads, head_dim = config_.head_dim;
  const int64_t window = config_.Window(layer);
  const float* keys = Data(cache_->keys(layer));
  const float* values = Data(cache_->values(layer));
  const int64_t count = static_cast<int64_t>(tasks_.size()) * config_.kv_heads;
  worker.For(count, [&](int64_t item) {
    const Task& task = tasks_[item / config_.kv_heads];
    const int64_t kv_head = item % config_.kv_heads;
    AttentionArgs args;
    args.shared_tokens = task.shared_tokens;
    args.keys = keys + kv_head * head_dim * kKvBlock;
    args.values = values + kv_head * head_dim * kKvBlock;
    args.block_stride = kv_size_ * kKvBlock;
    // The next item is mostly this thread's, too.
    args.ahead = kv_head + 1 < config_.kv_heads ? head_dim * kKvBlock : 0;
    args.head_dim = head_dim;
    args.scratch = scratch_ + worker.thread() * kScratch;
    // Groups of more query heads than one call takes are split.
    for (int64_t head = 0; head < per_kv; head += kAttentionRows) {
      AttentionRow rows[kAttentionRows];
      const int64_t heads = std::min(per_kv - head, kAttentionRows);
      args.rows = rows;
      args.count = 0;
      for (int64_t r : task.rows) {
        for (int64_t h = 0; h < heads; ++h) {
          const int64_t column = (kv_head * per_kv + head + h) * head_dim;
          rows[args.count++] = {qkv_ + r * (q_size_ + 2 * kv_size_) + column,
                                attended_ + r * attended_width_ + column, rows_[r].position + 1,
                                rows_[r].blocks, window > 0 ? rows_[r].position + 1 - window : 0};
        }
      }
      kernels_->attention(args);
    }
  });
}

}  // namespace millrace::decode
