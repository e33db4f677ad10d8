// Softmax statistics of rows of logits and their gradient, on the CPU. Row-major fp32; rows are
// shared out over LibTorch's threads.
#ifndef MILLRACE_MODEL_KERNELS_TRAIN_SOFTMAX_H_
#define MILLRACE_MODEL_KERNELS_TRAIN_SOFTMAX_H_

#include <cstdint>

namespace millrace {

struct SoftmaxRows {
  float* logits;           // (rows, vocab)
  const int64_t* targets;  // (rows)
  int64_t rows, vocab;
  float inverse_temperature;
};

// With z = logits / temperature: log_sum[r] = log sum exp z, logprobs[r] = z[target] - log_sum,
// entropy[r] = log_sum - E[z]. One pass for the maximum and one for the sums. Reads logits only.
void SoftmaxStatistics(const SoftmaxRows& rows, float* log_sum, float* logprobs, float* entropy);
// Overwrites logits with the gradient of sum_r grad[r] * logprobs[r]:
// grad[r] / temperature * (onehot(target) - softmax(z)).
void SoftmaxGradient(const SoftmaxRows& rows, const float* log_sum, const float* grad);

}  // namespace millrace

#endif  // MILLRACE_MODEL_KERNELS_TRAIN_SOFTMAX_H_
