// AdamW (Loshchilov & Hutter 2019) over one flat fp32 buffer, with the gradient's global norm
// clipped first: g *= min(1, max_norm / (norm + 1e-6)).
//
//   m = b1 m + (1 - b1) g        v = b2 v + (1 - b2) g^2
//   p = p (1 - lr decay) - lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps)
//
// On the CPU one fused pass over the four buffers, the same to the last bit for any number of
// threads; on other devices operators. Not thread-safe.
#ifndef MILLRACE_LEARNER_OPTIMIZER_H_
#define MILLRACE_LEARNER_OPTIMIZER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/transformer.h"

namespace millrace {

// Elements [begin, end) of the flat buffer.
struct DecayRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool decay = true;
};

// One range a parameter; norm weights and biases are not decayed.
std::vector<DecayRange> DecayRanges(const Transformer& model);

class AdamW {
 public:
  struct Options {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0;
    double max_grad_norm = 0;  // 0 = no clipping
    int threads = 1;           // of the CPU pass
  };
  struct StepInfo {
    double grad_norm = 0;  // before clipping
    bool applied = false;  // false: the norm was not finite; parameters and moments are unchanged
  };
  // Both flat tensors (P), fp32, contiguous, on one device. `ranges` ascend and cover 0..P.
  static absl::StatusOr<std::unique_ptr<AdamW>> Create(at::Tensor parameters, at::Tensor gradients,
                                                       std::vector<DecayRange> ranges,
                                                       Options options);

  // One update at rate `lr`; leaves the gradients zero in either case.
  absl::StatusOr<StepInfo> Step(double lr);

  int64_t updates() const { return updates_; }            // applied so far
  const at::Tensor& first_moment() const { return m_; }   // (P)
  const at::Tensor& second_moment() const { return v_; }  // (P)
  // As saved: moments (P) on any device.
  absl::Status Restore(int64_t updates, const at::Tensor& first, const at::Tensor& second);

 private:
  AdamW(at::Tensor parameters, at::Tensor gradients, std::vector<DecayRange> ranges,
        Options options);
  double GradNorm() const;
  void UpdateHost(double lr, double clip);
  void UpdateDevice(double lr, double clip);

  at::Tensor p_, g_, m_, v_;
  std::vector<DecayRange> ranges_;
  Options options_;
  int64_t updates_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_LEARNER_OPTIMIZER_H_
