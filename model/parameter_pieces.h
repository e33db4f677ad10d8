// Parameters of a model that lie outside of it, in memory received by weight sync, found by the
// views of the model's flat buffer (model/weights.h) that they belong to. Several parameters may
// make one view (q, k and v; gate and up). Immutable; the bytes must outlive it.
#ifndef MILLRACE_MODEL_PARAMETER_PIECES_H_
#define MILLRACE_MODEL_PARAMETER_PIECES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "model/parameter_view.h"

namespace millrace {

class ParameterPieces {
 public:
  // Whether they can be read where they are: fp32 all of them, and on addresses of floats.
  static bool Readable(absl::Span<const ParameterBytes> parameters);
  // `parameters` have passed CheckParameters(config) with their bytes, and are Readable().
  ParameterPieces(const ModelConfig& config, absl::Span<const ParameterBytes> parameters);

  // The values of a view of whole parameters, piece by piece in its order; none of an undefined
  // one.
  std::vector<absl::Span<const float>> Of(const at::Tensor& view) const;

 private:
  struct Piece {
    int64_t offset;  // in the flat buffer
    absl::Span<const float> values;
  };
  std::vector<Piece> pieces_;  // by offset
};

}  // namespace millrace

#endif  // MILLRACE_MODEL_PARAMETER_PIECES_H_
