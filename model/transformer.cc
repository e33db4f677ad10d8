#include "model/transformer.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "model/kernels/train_elementwise.h"
#include "model/load_progress.h"
#include "model/read_parameters.h"
#include "model/safetensors.h"
#include "model/torch_status.h"
#include "model/transformer_fused.h"
#include "model/transformer_operators.h"

namespace millrace {

struct Transformer::Impl {
  ModelConfig config;
  at::Tensor flat, flat_grad;  // (P)
  std::vector<NamedParameter> parameters;
  ModelWeights weights;
  ModelWeights gradients;  // views of flat_grad
  ModelWeights leaves;     // the storage of weights as autograd leaves; defined with flat_grad
  std::unique_ptr<FusedTransformer> fused;  // on the CPU
  bool force_operators = false;
  ComputeType compute = ComputeType::kFloat32;

  Impl(const ModelConfig& c, at::Tensor parameters_on_device)
      : config(c), flat(std::move(parameters_on_device)) {
    weights = MakeWeightViews(config, flat);
    if (flat.is_cpu() && config.head_dim <= kMaxHeadDim && config.experts == 0) {
      fused = std::make_unique<FusedTransformer>(config, weights);
    }
    int64_t offset = 0;
    for (ParameterShape& p : ParameterShapes(config)) {
      at::Tensor view = flat.narrow(0, offset, c10::multiply_integers(p.shape)).view(p.shape);
      offset += view.numel();
      parameters.push_back({std::move(p.name), std::move(view), {}});
    }
  }

  void AllocateGradients() {
    if (flat_grad.defined()) return;
    flat_grad = at::zeros_like(flat);
    int64_t offset = 0;
    for (NamedParameter& p : parameters) {
      p.grad = flat_grad.narrow(0, offset, p.tensor.numel()).view(p.tensor.sizes());
      offset += p.tensor.numel();
    }
    // AccumulateGrad adds in place to a gradient that is already there, so each leaf starts with
    // its part of the flat buffer.
    leaves = weights;
    gradients = MakeWeightViews(config, flat_grad);
    ForEachWeight(leaves, gradients, [](at::Tensor& leaf, at::Tensor& grad) {
      leaf = leaf.detach().set_requires_grad(true);
      leaf.mutable_grad() = grad;
    });
    if (config.tie_word_embeddings) leaves.lm_head = leaves.embed;
  }
};

namespace {

absl::Status CheckDevice(at::Device device) {
  if (device.type() == at::kCUDA && !at::hasCUDA()) {
    return absl::FailedPreconditionError(
        absl::StrCat("device ", device.str(), " was asked for, but no CUDA device can be used"));
  }
  return absl::OkStatus();
}

}  // namespace

Transformer::Transformer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Transformer::~Transformer() = default;

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Create(const ModelConfig& config,
                                                                 uint64_t seed, at::Device device) {
  MR_RETURN_IF_ERROR(ValidateModelConfig(config));
  MR_RETURN_IF_ERROR(CheckDevice(device));
  return CatchTorch("creating a model", [&]() -> absl::StatusOr<std::unique_ptr<Transformer>> {
    // Drawn on the CPU, so that a seed means the same weights on every device.
    at::Generator generator = at::detail::createCPUGenerator(seed);
    at::Tensor flat = at::empty({ParameterCount(config)}, at::kFloat);
    int64_t offset = 0;
    for (const ParameterShape& p : ParameterShapes(config)) {
      at::Tensor view = flat.narrow(0, offset, c10::multiply_integers(p.shape));
      if (absl::EndsWith(p.name, "norm.weight")) {
        view.fill_(1.0);
      } else if (absl::EndsWith(p.name, "bias")) {
        view.zero_();
      } else {
        view.normal_(0, 0.02, generator);
      }
      offset += view.numel();
    }
    return std::unique_ptr<Transformer>(
        new Transformer(std::make_unique<Impl>(config, flat.to(device))));
  });
}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Allocate(const ModelConfig& config,
                                                                   at::Device device) {
  MR_RETURN_IF_ERROR(ValidateModelConfig(config));
  MR_RETURN_IF_ERROR(CheckDevice(device));
  return CatchTorch("allocating a model", [&]() -> absl::StatusOr<std::unique_ptr<Transformer>> {
    const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
    return std::unique_ptr<Transformer>(new Transformer(
        std::make_unique<Impl>(config, at::empty({ParameterCount(config)}, options))));
  });
}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Load(const std::string& dir,
                                                               at::Device device,
                                                               const LoadOptions& options) {
  MR_RETURN_IF_ERROR(CheckDevice(device));
  MR_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(dir));
  return CatchTorch(
      absl::StrCat("loading ", dir), [&]() -> absl::StatusOr<std::unique_ptr<Transformer>> {
        MR_ASSIGN_OR_RETURN(
            at::Tensor flat,
            ReadParameters(config, dir, device,
                           options.progress ? options.progress : LoggedProgress("loading " + dir)));
        return std::unique_ptr<Transformer>(
            new Transformer(std::make_unique<Impl>(config, std::move(flat))));
      });
}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::OfWeights(at::Tensor flat) const {
  auto other = std::unique_ptr<Transformer>(
      new Transformer(std::make_unique<Impl>(impl_->config, std::move(flat))));
  other->set_compute_type(impl_->compute);
  return other;
}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Clone() const {
  return CatchTorch("copying a model", [&] { return OfWeights(impl_->flat.clone()); });
}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Share() const {
  return CatchTorch("sharing a model", [&] { return OfWeights(impl_->flat); });
}

const ModelConfig& Transformer::config() const { return impl_->config; }
at::Device Transformer::device() const { return impl_->flat.device(); }
const std::vector<NamedParameter>& Transformer::parameters() const { return impl_->parameters; }
at::Tensor Transformer::flat_parameters() const { return impl_->flat; }
const ModelWeights& Transformer::weights() const { return impl_->weights; }
void Transformer::set_compute_type(ComputeType type) {
  impl_->compute = type;
  if (impl_->fused != nullptr) impl_->fused->set_compute_type(type);
}
ComputeType Transformer::compute_type() const { return impl_->compute; }
void Transformer::set_force_operators(bool force) { impl_->force_operators = force; }

at::Tensor Transformer::flat_gradients() {
  impl_->AllocateGradients();
  return impl_->flat_grad;
}

void Transformer::ZeroGradients() {
  if (impl_->flat_grad.defined()) impl_->flat_grad.zero_();
}

at::Tensor Transformer::lm_head() const {
  return impl_->flat_grad.defined() ? impl_->leaves.lm_head : impl_->weights.lm_head;
}

absl::StatusOr<at::Tensor> Transformer::Forward(const PackedBatch& batch) {
  MR_RETURN_IF_ERROR(ValidatePackedBatch(batch, impl_->config.vocab_size));
  return CatchTorch("training forward", [&]() -> absl::StatusOr<at::Tensor> {
    const bool train = c10::GradMode::is_enabled();
    if (train) impl_->AllocateGradients();
    if (impl_->fused != nullptr && !impl_->force_operators) {
      return train ? impl_->fused->ForwardWithGradient(batch, impl_->gradients, impl_->leaves.embed)
                   : impl_->fused->Forward(batch);
    }
    return ForwardWithOperators(impl_->config, train ? impl_->leaves : impl_->weights, batch);
  });
}

absl::StatusOr<std::vector<at::Tensor>> Transformer::RouterLogits(const PackedBatch& batch) {
  MR_RETURN_IF_ERROR(ValidatePackedBatch(batch, impl_->config.vocab_size));
  return CatchTorch("router logits", [&]() -> absl::StatusOr<std::vector<at::Tensor>> {
    const bool train = c10::GradMode::is_enabled();
    if (train) impl_->AllocateGradients();
    std::vector<at::Tensor> logits;
    ForwardWithOperators(impl_->config, train ? impl_->leaves : impl_->weights, batch, &logits);
    return logits;
  });
}

absl::Status Transformer::Save(const std::string& dir, const std::string& dtype) const {
  if (dtype != "F32" && dtype != "BF16") {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot save weights as ", dtype, "; valid: F32, BF16"));
  }
  return CatchTorch(absl::StrCat("saving to ", dir), [&]() -> absl::Status {
    std::map<std::string, TensorSpec> specs;
    std::map<std::string, at::Tensor> tensors;
    for (const NamedParameter& p : impl_->parameters) {
      specs[p.name] = {dtype, p.tensor.sizes().vec()};
      tensors[p.name] = p.tensor;
    }
    at::Tensor host;  // of the tensor that is being written
    const auto bytes_of =
        [&](const std::string& name) -> absl::StatusOr<absl::Span<const std::byte>> {
      host = tensors.at(name).to(at::kCPU, dtype == "F32" ? at::kFloat : at::kBFloat16);
      return absl::MakeConstSpan(static_cast<const std::byte*>(host.const_data_ptr()),
                                 host.nbytes());
    };
    MR_RETURN_IF_ERROR(MakeDirectories(dir));
    MR_RETURN_IF_ERROR(
        WriteSafetensorsOneByOne(JoinPath(dir, "model.safetensors"), specs, bytes_of));
    // Last: a folder without it is no model.
    return WriteFileAtomically(JoinPath(dir, "config.json"),
                               ModelConfigToJson(impl_->config, dtype));
  });
}

}  // namespace millrace
