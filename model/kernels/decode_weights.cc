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

}  // namespace

int64_t PackedMatrix::Bytes(int64_t n, int64_t k, bool swiglu) {
  const int64_t width = 2 * BestKernels().lanes;
  return HugeArena::RoundedBytes(Panels(n, swiglu) * width * k);
}

PackedMatrix::PackedMatrix(int64_t n, int64_t k, bool swiglu, HugeArena* arena)
    : kernels_(&BestKernels()),
      n_(n),
      k_(k),
      swiglu_(swiglu),
      panel_outputs_(PanelOutputs(swiglu)),
      panels_(Panels(n, swiglu)),
      data_(arena->Take(panels_ * 2 * kernels_->lanes * k)),
      bias_(panels_ * 2 * kernels_->lanes, 0.0f) {}

void PackedMatrix::Pack(PoolWorker& worker, const float* weight, const float* bias) {
  const int64_t lanes = kernels_->lanes, width = 2 * lanes;
  if (worker.thread() == 0) has_bias_ = bias != nullptr;
  worker.For(panels_, [&](int64_t panel) {
    const float* rows[64] = {};
    for (int64_t j = 0; j < width; ++j) {
      int64_t row = panel * panel_outputs_ + j;
      bool valid = row < n_;
      if (swiglu_) {
        const int64_t column = panel * lanes + j % lanes;
        valid = column < n_ / 2;
        row = column + (j >= lanes ? n_ / 2 : 0);
      }
      if (!valid) continue;
      rows[j] = weight + row * k_;
      if (bias != nullptr) bias_[panel * width + j] = bias[row];
    }
    kernels_->pack_panel(rows, k_, data_ + panel * width * k_);
  });
}

void PackedMatrix::Multiply(PoolWorker& worker, const Product& product) const {
  const int64_t width = 2 * kernels_->lanes;
  const int64_t outputs = swiglu_ ? n_ / 2 : n_;
  const int64_t blocks = (product.rows + kRowBlock - 1) / kRowBlock;
  if (blocks == 0) return;
  const int64_t block_rows = (product.rows + blocks - 1) / blocks;
  const int64_t group =
      std::clamp<int64_t>(kItemWork / (block_rows * k_ * width), 1, (panels_ + 7) / 8);
  const int64_t groups = (panels_ + group - 1) / group;
  worker.For(blocks * groups, [&](int64_t item) {
    const int64_t row = item / groups * block_rows;
    GemmArgs args;
    args.rows = std::min(block_rows, product.rows - row);
    args.a = product.a + row * product.lda;
    args.lda = product.lda;
    args.k = k_;
    args.ldo = product.ldo;
    args.mode = swiglu_ ? GemmMode::kSwiglu : (product.add ? GemmMode::kAdd : GemmMode::kStore);
    const int64_t first = item % groups * group;
    for (int64_t panel = first; panel < std::min(first + group, panels_); ++panel) {
      args.panel = data_ + panel * width * k_;
      args.bias = has_bias_ ? bias_.data() + panel * width : nullptr;
      args.out = product.out + row * product.ldo + panel * panel_outputs_;
      args.cols = std::min(panel_outputs_, outputs - panel * panel_outputs_);
      kernels_->gemm(args);
    }
  });
}

}  // namespace millrace::decode
