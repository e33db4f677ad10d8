#include "model/parameter_view.h"

#include <ATen/ATen.h>

#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "model/kernels/parallel.h"
#include "model/safetensors.h"
#include "model/torch_status.h"

namespace millrace {
namespace {

absl::Status CheckOne(const ParameterShape& expected, const ParameterBytes& given,
                      bool with_bytes) {
  if (given.shape != expected.shape) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", given.name, " has shape (", absl::StrJoin(given.shape, ", "),
                     "), the model's is (", absl::StrJoin(expected.shape, ", "), ")"));
  }
  if (given.dtype != "F32" && given.dtype != "BF16" && given.dtype != "F16") {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", given.name, " has dtype ", given.dtype, "; valid: F32, BF16, F16"));
  }
  const int64_t bytes = c10::multiply_integers(given.shape) * DtypeSize(given.dtype);
  if (with_bytes && static_cast<int64_t>(given.bytes.size()) != bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", given.name, " has ", given.bytes.size(), " bytes, its shape needs ", bytes));
  }
  return absl::OkStatus();
}

void CopyFloats(absl::Span<const std::byte> from, float* to) {
  constexpr int64_t kGrain = 1 << 20;
  at::parallel_for(0, from.size(), kGrain, [&](int64_t begin, int64_t end) {
    std::memcpy(reinterpret_cast<std::byte*>(to) + begin, from.data() + begin, end - begin);
  });
}

absl::Status CopyAll(absl::Span<const ParameterBytes> parameters, const ModelConfig& config,
                     at::Tensor flat) {
  std::map<std::string, float*> where;
  float* at = flat.data_ptr<float>();
  for (const ParameterShape& p : ParameterShapes(config)) {
    where[p.name] = at;
    at += c10::multiply_integers(p.shape);
  }
  for (const ParameterBytes& p : parameters) {
    float* out = where.at(p.name);
    if (p.dtype == "F32") {
      CopyFloats(p.bytes, out);
    } else {
      const TensorView view{p.dtype, p.shape, p.bytes};
      MR_RETURN_IF_ERROR(
          ConvertToFloat32(view, absl::MakeSpan(out, c10::multiply_integers(p.shape))));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ParameterView> ParameterView::Of(const Transformer& model) {
  return CatchTorch("viewing parameters", [&]() -> absl::StatusOr<ParameterView> {
    ParameterView view;
    view.host_ = model.flat_parameters().to(at::kCPU);
    const std::byte* at = static_cast<const std::byte*>(view.host_.const_data_ptr());
    for (const NamedParameter& p : model.parameters()) {
      const size_t bytes = p.tensor.numel() * sizeof(float);
      view.parameters_.push_back(
          {p.name, "F32", p.tensor.sizes().vec(), absl::MakeConstSpan(at, bytes)});
      at += bytes;
    }
    return view;
  });
}

absl::Status CheckParameters(const ModelConfig& config, absl::Span<const ParameterBytes> parameters,
                             bool with_bytes) {
  std::map<std::string, ParameterShape> expected;
  for (ParameterShape& p : ParameterShapes(config)) {
    std::string name = p.name;
    expected.emplace(std::move(name), std::move(p));
  }
  for (const ParameterBytes& given : parameters) {
    const auto it = expected.find(given.name);
    if (it == expected.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", given.name, " is not one of the model's, or came twice"));
    }
    MR_RETURN_IF_ERROR(CheckOne(it->second, given, with_bytes));
    expected.erase(it);
  }
  if (!expected.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(expected.size(), " tensors are missing, first ", expected.begin()->first));
  }
  return absl::OkStatus();
}

absl::Status WriteParameters(absl::Span<const ParameterBytes> parameters, Transformer* model) {
  MR_RETURN_IF_ERROR(CheckParameters(model->config(), parameters, /*with_bytes=*/true));
  return CatchTorch("writing parameters", [&]() -> absl::Status {
    at::Tensor flat = model->flat_parameters();
    if (flat.is_cpu()) return CopyAll(parameters, model->config(), flat);
    at::Tensor host = at::empty({flat.numel()}, at::kFloat);
    MR_RETURN_IF_ERROR(CopyAll(parameters, model->config(), host));
    flat.copy_(host);
    return absl::OkStatus();
  });
}

}  // namespace millrace
