// The inner loops of AdamW on host memory, compiled for several instruction sets (the best one is
// taken at load time). Pure functions.
#ifndef MILLRACE_LEARNER_ADAMW_KERNEL_H_
#define MILLRACE_LEARNER_ADAMW_KERNEL_H_

#include <cstdint>

namespace millrace {

struct AdamWConstants {
  float clip = 1;  // the gradient is multiplied by it
  float beta1 = 0, beta2 = 0, one_minus_beta1 = 0, one_minus_beta2 = 0;
  float eps = 0;
  float step = 0;          // lr / (1 - beta1^t)
  float inverse_root = 0;  // 1 / sqrt(1 - beta2^t)
  float keep = 1;          // 1 - lr * weight_decay
};

// One update of n elements; gradients are set to 0.
void AdamWUpdate(const AdamWConstants& c, float* p, float* g, float* m, float* v, int64_t n);

// In double; the order of additions is fixed.
double SumOfSquares(const float* g, int64_t n);

}  // namespace millrace

#endif  // MILLRACE_LEARNER_ADAMW_KERNEL_H_
