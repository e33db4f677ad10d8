// A checkpoint's parameters, from its files into memory or onto a device.
#ifndef MILLRACE_MODEL_READ_PARAMETERS_H_
#define MILLRACE_MODEL_READ_PARAMETERS_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "model/model_config.h"

namespace millrace {

// The parameters of the model in `dir` (a Hugging Face folder, or a PEFT LoRA adapter's, which is
// merged), whose config is `config`: one flat fp32 tensor (P) on `device`, in ParameterShapes()
// order. Names, shapes and dtypes of all tensors are checked before the first is read; missing,
// surplus and misshapen ones are named. On the CPU the files are read straight to where the values
// belong, on all of LibTorch's threads, and made floats there, so that there is nothing beside
// the weights; for another device, one tensor at a time on its way there.
// `progress` (may be empty) is called from this thread with growing fractions, at the end with 1.
// LibTorch's exceptions are the caller's to catch.
absl::StatusOr<at::Tensor> ReadParameters(const ModelConfig& config, const std::string& dir,
                                          at::Device device,
                                          const std::function<void(double fraction)>& progress);

}  // namespace millrace

#endif  // MILLRACE_MODEL_READ_PARAMETERS_H_
