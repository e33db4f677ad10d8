#include "model/matrix_products.h"

#include <ATen/ATen.h>

#include "model/kernels/bf16_products.h"

namespace millrace {
namespace {

StridedMatrix Strided(const at::Tensor& m) {
  TORCH_CHECK(m.stride(0) == 1 || m.stride(1) == 1, "matrix product: strides ", m.strides(),
              ", one must be 1");
  return {m.const_data_ptr<float>(), m.stride(0), m.stride(1)};
}

}  // namespace

void MultiplyInto(ComputeType type, at::Tensor out, const at::Tensor& start, const at::Tensor& a,
                  const at::Tensor& b) {
  if (type == ComputeType::kFloat32 || !out.is_cpu()) {
    if (start.defined()) {
      at::addmm_out(out, start, a, b);
    } else {
      at::mm_out(out, a, b);
    }
    return;
  }
  TORCH_CHECK(out.size(0) == a.size(0) && a.size(1) == b.size(0) && out.size(1) == b.size(1) &&
                  out.stride(1) == 1 && a.size(1) > 0,
              "matrix product: ", a.sizes(), " times ", b.sizes(), " does not make ", out.sizes());
  Bf16Product p;
  p.m = out.size(0);
  p.n = out.size(1);
  p.k = a.size(1);
  p.a = Strided(a);
  p.b = Strided(b);
  p.out = out.data_ptr<float>();
  p.out_row = out.stride(0);
  if (start.defined()) {
    TORCH_CHECK(start.size(-1) == p.n && start.stride(-1) == 1 &&
                    (start.dim() == 1 || start.size(0) == p.m),
                "matrix product: start is ", start.sizes(), ", out ", out.sizes());
    p.start = start.const_data_ptr<float>();
    p.start_row = start.dim() == 1 ? 0 : start.stride(0);
  }
  MultiplyBf16(p);
}

}  // namespace millrace
