// The matrix products of the training pass on the CPU, by ComputeType. All operands are fp32
// matrices of which one dimension is contiguous; `out` may not overlap a factor. Throw c10::Error
// on mismatched shapes.
#ifndef MILLRACE_MODEL_MATRIX_PRODUCTS_H_
#define MILLRACE_MODEL_MATRIX_PRODUCTS_H_

#include <ATen/core/Tensor.h>

#include "model/compute_type.h"

namespace millrace {

// out (m, n) = a (m, k) b (k, n) + start, where start is undefined (zero), (n) for each row, or
// (m, n), also `out` itself.
void MultiplyInto(ComputeType type, at::Tensor out, const at::Tensor& start, const at::Tensor& a,
                  const at::Tensor& b);

}  // namespace millrace

#endif  // MILLRACE_MODEL_MATRIX_PRODUCTS_H_
