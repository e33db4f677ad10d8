// The decode forward on the CPU: one program for all threads, from token ids to logits, in packed
// weights and own kernels. Rows are tokens of any sequences; nothing is padded. Not thread-safe.
#ifndef MILLRACE_MODEL_KERNELS_DECODE_STEP_H_
#define MILLRACE_MODEL_KERNELS_DECODE_STEP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "model/compute_type.h"
#include "model/kernels/decode_pool.h"
#include "model/kernels/decode_weights.h"
#include "model/kv_cache.h"
#include "model/model_config.h"
#include "model/parameter_pieces.h"
#include "model/weights.h"

namespace millrace::decode {

// New tokens of one sequence whose cache blocks are already there.
struct StepSequence {
  const KvSequence* kv = nullptr;  // length() counts the new tokens
  absl::Span<const int32_t> tokens;
  bool want_logits = true;
};

class FusedStep {
 public:
  // All must outlive it.
  FusedStep(const ModelConfig& config, const ModelWeights& weights, ComputeType compute,
            KvCache* cache, ComputePool* pool);
  // Lays the weights out again, from what they are now. What no product reads (embedding, norms)
  // is read from them later, too.
  void Pack();
  // The same from elsewhere, with copies of what no product reads: the memory of the constructor's
  // weights is not looked at any more.
  void Pack(const ParameterPieces& pieces);
  // Writes the logits (R, V) of the last token of each sequence that wants them, in order.
  // Memory of the result belongs to this object.
  float* Run(absl::Span<const StepSequence> sequences, int64_t* logit_rows);

 private:
  struct Layer {
    PackedMatrix qkv, o, gate_up, down;
  };
  struct Row {
    int32_t token;
    int64_t position;
    const int32_t* blocks;
  };
  // Query rows that are computed together: tokens of one sequence, or single tokens of sequences
  // that begin with the same blocks.
  struct Task {
    std::vector<int64_t> rows;
    int64_t shared_tokens = 0;
  };
  // Parts of the weight (rows, k) and the bias that these views stand for.
  using Source = std::function<std::vector<PackedMatrix::Rows>(const at::Tensor& weight,
                                                               const at::Tensor& bias)>;
  void PackFrom(const Source& source);
  ModelWeights CopyUnpacked(const ParameterPieces& pieces);
  void Plan(absl::Span<const StepSequence> sequences);
  void PlanTasks(absl::Span<const StepSequence> sequences);
  void GrowBuffers();
  void GrowAngles(int64_t positions);
  void Program(PoolWorker& worker);
  void Norm(PoolWorker& worker, const float* weight, int64_t rows);
  void KeepWantedRows();
  void Heads(PoolWorker& worker, int64_t layer);
  void Attend(PoolWorker& worker, int64_t layer);

  const ModelConfig& config_;
  const ModelWeights& weights_;
  ModelWeights
      unpacked_;  // what a step reads unpacked: weights_, or own copies of embedding and norms
  KvCache* cache_;
  ComputePool* pool_;
  const Kernels* kernels_;
  const ComputeType compute_;
  int64_t q_size_, kv_size_;
  std::unique_ptr<HugeArena> arena_;  // of the packed weights
  std::vector<std::unique_ptr<Layer>> layers_;
  std::unique_ptr<PackedMatrix> head_;
  std::vector<float> cos_, sin_;  // (positions, head_dim / 2)
  int64_t angle_positions_ = 0;

  std::vector<Row> rows_;
  std::vector<int64_t> logit_rows_;
  std::vector<Task> tasks_;
  int64_t row_capacity_ = 0, logit_capacity_ = 0;
  // (rows, width); widths of what products read are padded, so that rows do not fall on the same
  // cache sets.
  std::unique_ptr<HugeArena> row_memory_, logit_memory_;
  float *x_ = nullptr, *normed_ = nullptr, *qkv_ = nullptr, *attended_ = nullptr;
  float *activated_ = nullptr, *last_ = nullptr, *logits_ = nullptr;
  float* rounded_ = nullptr;  // bf16 factors of one product
  int64_t normed_width_, attended_width_, activated_width_;
  std::unique_ptr<HugeArena> scratch_memory_;
  float* scratch_;  // per thread
};

}  // namespace millrace::decode

#endif  // MILLRACE_MODEL_KERNELS_DECODE_STEP_H_
