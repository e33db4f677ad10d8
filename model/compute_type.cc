#include "model/compute_type.h"

#include "absl/strings/str_cat.h"
#include "model/kernels/bf16_products.h"

namespace millrace {

absl::StatusOr<ComputeType> ParseComputeType(const std::string& name, bool on_cpu) {
  if (name == "fp32") return ComputeType::kFloat32;
  if (name != "bf16" && name != "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat("model.compute_dtype is \"", name, "\"; valid: fp32, bf16, auto"));
  }
  if (on_cpu && HasBf16Products()) return ComputeType::kBfloat16;
  if (name == "auto") return ComputeType::kFloat32;
  return absl::FailedPreconditionError(
      absl::StrCat("model.compute_dtype is \"bf16\", but ",
                   on_cpu ? "this CPU has no AVX512_BF16 instructions" : "the model isn't on a CPU",
                   "; valid here: fp32, auto"));
}

const char* ComputeTypeName(ComputeType type) {
  return type == ComputeType::kBfloat16 ? "bf16" : "fp32";
}

}  // namespace millrace
