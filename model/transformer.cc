#include "model/transformer.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>
#include <sys/mman.h>

#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/files.h"
#include "common/status_macros.h"
#include "model/adapter.h"
#include "model/kernels/parallel.h"
#include "model/kernels/train_elementwise.h"
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

// Names in the checkpoint that are no parameter of the model.
bool Ignorable(const ModelConfig& config, const std::string& name) {
  return (config.tie_word_embeddings && name == "lm_head.weight") ||
         absl::EndsWith(name, "rotary_emb.inv_freq");
}

absl::Status CheckNames(const ModelConfig& config, const CheckpointReader& reader,
                        const std::string& dir) {
  std::set<std::string> surplus, missing;
  for (std::string& name : reader.Names()) {
    if (!Ignorable(config, name)) surplus.insert(std::move(name));
  }
  for (const ParameterShape& p : ParameterShapes(config)) {
    if (surplus.erase(p.name) == 0) missing.insert(p.name);
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        dir, ": ", missing.size(), " tensors are missing: ", absl::StrJoin(missing, ", ")));
  }
  if (!surplus.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(dir, ": ", surplus.size(),
                                                   " tensors are not part of a ", config.model_type,
                                                   " model: ", absl::StrJoin(surplus, ", ")));
  }
  return absl::OkStatus();
}

// Shapes and dtypes, of all tensors before the first is read.
absl::Status CheckTensors(const ModelConfig& config, const CheckpointReader& reader,
                          const std::string& dir) {
  MR_RETURN_IF_ERROR(CheckNames(config, reader, dir));
  for (const ParameterShape& p : ParameterShapes(config)) {
    MR_ASSIGN_OR_RETURN(const TensorView view, reader.Get(p.name));
    if (view.shape != p.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat(dir, ": tensor ", p.name, " has shape (", absl::StrJoin(view.shape, ", "),
                       "), config.json says (", absl::StrJoin(p.shape, ", "), ")"));
    }
    if (view.dtype != "F32" && view.dtype != "BF16" && view.dtype != "F16") {
      return absl::UnimplementedError(absl::StrCat(dir, ": tensor ", p.name, " has dtype ",
                                                   view.dtype, " (of F32, BF16, F16)"));
    }
  }
  return absl::OkStatus();
}

// On all threads: both the copy and the system's first touch of `out` are a matter of bandwidth.
absl::Status ConvertInParallel(const TensorView& view, float* out, int64_t n) {
  constexpr int64_t kGrain = 1 << 18;
  const int64_t element = DtypeSize(view.dtype);
  std::atomic<bool> failed{false};
  at::parallel_for(0, n, kGrain, [&](int64_t begin, int64_t end) {
    const TensorView part = {
        view.dtype, {end - begin}, view.bytes.subspan(begin * element, (end - begin) * element)};
    if (!ConvertToFloat32(part, absl::MakeSpan(out + begin, end - begin)).ok()) failed = true;
  });
  return failed ? ConvertToFloat32(view, absl::MakeSpan(out, n)) : absl::OkStatus();
}

at::Tensor ToFloat(const TensorView& view) {
  at::Tensor out = at::empty(view.shape, at::kFloat);
  const absl::Status status =
      ConvertToFloat32(view, absl::MakeSpan(out.data_ptr<float>(), out.numel()));
  TORCH_CHECK(status.ok(), std::string(status.message()));
  return out;
}

// Whole pages of memory that is about to be written from end to end.
void AdviseHugePages(void* data, int64_t bytes) {
  constexpr uintptr_t kPage = 1 << 21;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / kPage * kPage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

struct Checkpoint {
  std::string dir;
  CheckpointReader reader;
  std::optional<Adapter> adapter;
};

absl::StatusOr<Checkpoint> OpenCheckpoint(const ModelConfig& config, const std::string& folder) {
  Checkpoint out;
  MR_ASSIGN_OR_RETURN(out.dir, BaseModelDir(folder));
  MR_ASSIGN_OR_RETURN(out.reader, CheckpointReader::Open(out.dir));
  MR_RETURN_IF_ERROR(CheckTensors(config, out.reader, out.dir));
  if (IsAdapterDir(folder)) {
    MR_ASSIGN_OR_RETURN(out.adapter, Adapter::Open(folder, config));
  }
  return out;
}

// Parameters on `device`, tensor by tensor: beside them there is one tensor at most, as the file's
// pages or as a copy on its way to the device.
absl::StatusOr<at::Tensor> ReadParameters(const ModelConfig& config, const Checkpoint& from,
                                          at::Device device, const LoadOptions& options) {
  const std::vector<ParameterShape> shapes = ParameterShapes(config);
  const int64_t total = ParameterCount(config);
  const at::TensorOptions floats = at::TensorOptions().dtype(at::kFloat);
  at::Tensor flat = at::empty({total}, floats.device(device));
  if (device.is_cpu()) AdviseHugePages(flat.data_ptr(), total * sizeof(float));
  int64_t done = 0;
  for (const ParameterShape& p : shapes) {
    MR_ASSIGN_OR_RETURN(const TensorView view, from.reader.Get(p.name));
    const int64_t n = p.Elements();
    at::Tensor place = flat.narrow(0, done, n);
    at::Tensor host = device.is_cpu() ? place : at::empty({n}, floats);
    MR_RETURN_IF_ERROR(ConvertInParallel(view, host.data_ptr<float>(), n));
    if (from.adapter) {
      const auto pair = from.adapter->pairs().find(p.name);
      if (pair != from.adapter->pairs().end()) {
        host.view(p.shape).addmm_(ToFloat(pair->second.b), ToFloat(pair->second.a), 1,
                                  pair->second.scaling);
      }
    }
    if (!device.is_cpu()) place.copy_(host);
    from.reader.Release(p.name);
    done += n;
    if (options.progress) {
      options.progress(static_cast<double>(done) / static_cast<double>(total));
    }
  }
  return flat;
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

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Load(const std::string& dir,
                                                               at::Device device,
                                                               const LoadOptions& options) {
  MR_RETURN_IF_ERROR(CheckDevice(device));
  MR_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(dir));
  return CatchTorch(
      absl::StrCat("loading ", dir), [&]() -> absl::StatusOr<std::unique_ptr<Transformer>> {
        MR_ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(config, dir));
        MR_ASSIGN_OR_RETURN(at::Tensor flat, ReadParameters(config, checkpoint, device, options));
        return std::unique_ptr<Transformer>(
            new Transformer(std::make_unique<Impl>(config, std::move(flat))));
      });
}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Clone() const {
  return CatchTorch("copying a model", [&]() -> absl::StatusOr<std::unique_ptr<Transformer>> {
    auto copy = std::unique_ptr<Transformer>(
        new Transformer(std::make_unique<Impl>(impl_->config, impl_->flat.clone())));
    copy->set_compute_type(impl_->compute);
    return copy;
  });
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
