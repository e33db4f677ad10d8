// In what number format matrix products are computed. Weights, activations, gradients and sums are
// fp32 either way; kBfloat16 rounds the factors of each product (model/kernels/bf16_products.h).
#ifndef MILLRACE_MODEL_COMPUTE_TYPE_H_
#define MILLRACE_MODEL_COMPUTE_TYPE_H_

#include <string>

#include "absl/status/statusor.h"

namespace millrace {

enum class ComputeType { kFloat32, kBfloat16 };

// model.compute_dtype of the config: "fp32"; "bf16", FAILED_PRECONDITION where the CPU lacks
// AVX512_BF16 or the model isn't on the CPU; "auto", bf16 where it can be had.
absl::StatusOr<ComputeType> ParseComputeType(const std::string& name, bool on_cpu);
// "fp32" or "bf16".
const char* ComputeTypeName(ComputeType type);

}  // namespace millrace

#endif  // MILLRACE_MODEL_COMPUTE_TYPE_H_
