#include "model/kernels/decode_weights.h"

#include <algorithm>

namespace millrace::decode {
namespace {

constexpr int64_t kRowBlock = 96;       // rows whose activations stay in the second-level cache
constexpr int64_t kItemWork = 1 << 18;  // multiply-adds below which panels are handed out together

int64_t PanelOutputs(bool swiglu) { return (swiglu ? 1 : 2) * BestKernels().lanes; }

int64_t Panels(int64_t n, bool swiglu) {
  const int64_t outputs = swiglu ? n / 2 : n;
  return (outputs + PanelOutputs(swiglu) - 1) / PanelOutputs(swiglu);
}

// Floats of memory that a panel takes.
int64_t Floats(const PackedMatrix::Shape& s) {
  const int64_t width = 2 * BestKernels().lanes;
  return s.type == ComputeType::kBfloat16 ? (s.k + 1) / 2 * width : s.k * width;
}

// The part that row `*row` is in; `*row` becomes its place there.
const PackedMatrix::Rows& PartOf(absl::Span<const PackedMatrix::Rows> parts, int64_t* row) {
  size_t part = 0;
  while (*row >= parts[part].count) *row -= parts[part++].count;
  return parts[part];
}

}  // namespace

int64_t PackedMatrix::Bytes(const Shape& s) {
  return HugeArena::RoundedBytes(Panels(s.n, s.swiglu) * Floats(s));
}

PackedMatrix::PackedMatrix(const Shape& shape, HugeArena* arena)
    : kernels_(&BestKernels()),
      shape_(shape),
      panel_outputs_(PanelOutputs(shape.swiglu)),
      panels_(Panels(shape.n, shape.swiglu)),
      data_(arena->Take(panels_ * Floats(shape))),
      bias_(panels_ * 2 * kernels_->lanes, 0.0f) {}

int64_t PackedMatrix::PanelFloats() const { return Floats(shape_); }

void PackedMatrix::Pack(PoolWorker& worker, absl::Span<const Rows> parts) {
  const int64_t lanes = kernels_->lanes, width = 2 * lanes;
  if (worker.thread() == 0) has_bias_ = parts.front().bias != nullptr;
  worker.For(panels_, [&](int64_t panel) {
    const float* rows[64] = {};
    for (int64_t j = 0; j < width; ++j) {
      int64_t row = panel * panel_outputs_ + j;
      bool valid = row < shape_.n;
      if (shape_.swiglu) {
        const int64_t column = panel * lanes + j % lanes;
        valid = column < shape_.n / 2;
        row = column + (j >= lanes ? shape_.n / 2 : 0);
      }
      if (!valid) continue;
      const Rows& part = PartOf(parts, &row);
      rows[j] = part.weight + row * shape_.k;
      if (part.bias != nullptr) bias_[panel * width + j] = part.bias[row];
    }
    float* out = data_ + panel * PanelFloats();
    if (bf16()) {
      kernels_->pack_panel_bf16(rows, shape_.k, reinterpret_cast<uint16_t*>(out));
    } else {
      kernels_->pack_panel(rows, shape_.k, out);
    }
  });
}

void PackedMatrix::Multiply(PoolWorker& worker, const Product& product) const {
  const int64_t width = 2 * kernels_->lanes;
  const int64_t k = shape_.k, even = (k + 1) / 2 * 2;
  const int64_t outputs = shape_.swiglu ? shape_.n / 2 : shape_.n;
  const int64_t blocks = (product.rows + kRowBlock - 1) / kRowBlock;
  if (blocks == 0) return;
  const int64_t block_rows = (product.rows + blocks - 1) / blocks;
  const int64_t group =
      std::clamp<int64_t>(kItemWork / (block_rows * k * width), 1, (panels_ + 7) / 8);
  const int64_t groups = (panels_ + group - 1) / group;
  if (bf16()) {
    worker.For(product.rows, [&](int64_t row) {
      kernels_->round_bf16(product.a + row * product.lda, k, product.rounded + row * even);
    });
  }
  worker.For(blocks * groups, [&](int64_t item) {
    const int64_t row = item / groups * block_rows;
    GemmArgs args;
    args.rows = std::min(block_rows, product.rows - row);
    args.a = product.a + row * product.lda;
    args.a_bf16 = product.rounded + row * even;
    args.lda = bf16() ? even : product.lda;
    args.k = k;
    args.ldo = product.ldo;
    args.mode =
        shape_.swiglu ? GemmMode::kSwiglu : (product.add ? GemmMode::kAdd : GemmMode::kStore);
    const int64_t first = item % groups * group;
    for (int64_t panel = first; panel < std::min(first + group, panels_); ++panel) {
      args.panel = data_ + panel * PanelFloats();
      args.panel_bf16 = reinterpret_cast<const uint16_t*>(args.panel);
      args.bias = has_bias_ ? bias_.data() + panel * width : nullptr;
      args.out = product.out + row * product.ldo + panel * panel_outputs_;
      args.cols = std::min(panel_outputs_, outputs - panel * panel_outputs_);
      if (bf16()) {
        kernels_->gemm_bf16(args);
      } else {
        kernels_->gemm(args);
      }
    }
  });
}

}  // namespace millrace::decode
