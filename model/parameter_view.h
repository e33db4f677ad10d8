// Parameters as named bytes on the host: the seam between the model and weight sync, which sees no
// torch. Not thread-safe: nobody may write the parameters meanwhile.
#ifndef MILLRACE_MODEL_PARAMETER_VIEW_H_
#define MILLRACE_MODEL_PARAMETER_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/transformer.h"

namespace millrace {

struct ParameterBytes {
  std::string name;   // HF name
  std::string dtype;  // safetensors' spelling; "F32" from ViewParameters, also BF16 or F16 to write
  std::vector<int64_t> shape;
  absl::Span<const std::byte> bytes;  // host, row-major, little-endian
};

class ParameterView {
 public:
  // The parameters of `model` in the order of ParameterShapes(). On the CPU the bytes are the
  // model's own, so that they change with it and `model` must outlive the view; of another device
  // they are a copy made now, in one transfer.
  static absl::StatusOr<ParameterView> Of(const Transformer& model);
  const std::vector<ParameterBytes>& parameters() const { return parameters_; }

 private:
  at::Tensor host_;
  std::vector<ParameterBytes> parameters_;
};

// INVALID_ARGUMENT, naming the tensor, unless `parameters` are those of `config` by name, shape and
// a known dtype, in any order, each once. Looks at the bytes' length only when `with_bytes`.
absl::Status CheckParameters(const ModelConfig& config, absl::Span<const ParameterBytes> parameters,
                             bool with_bytes);
// Writes all parameters in place; all are checked before the first byte is written. One transfer to
// a device. Call Decoder::WeightsChanged() afterwards.
absl::Status WriteParameters(absl::Span<const ParameterBytes> parameters, Transformer* model);

}  // namespace millrace

#endif  // MILLRACE_MODEL_PARAMETER_VIEW_H_
