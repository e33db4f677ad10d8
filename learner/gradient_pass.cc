#include "learner/gradient_pass.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/torch_status.h"

namespace millrace {
namespace {

at::Tensor ToDevice(const std::vector<int64_t>& values, at::Device device) {
  return at::from_blob(const_cast<int64_t*>(values.data()), {static_cast<int64_t>(values.size())},
                       at::kLong)
      .to(device);
}

absl::StatusOr<LogprobResult> Forward(Transformer& model, const MicroBatch& micro,
                                      const PassOptions& options) {
  MR_ASSIGN_OR_RETURN(at::Tensor hidden, model.Forward(micro.batch));
  const at::Tensor rows = hidden.index_select(0, ToDevice(micro.rows, hidden.device()));
  return SelectedLogprobs(rows, model.lm_head(), ToDevice(micro.targets, hidden.device()),
                          {options.temperature, options.logit_chunk, model.compute_type()});
}

TargetLogprobs ToHost(const LogprobResult& result) {
  // Stacked, so that a device hands both over in one transfer.
  const at::Tensor both =
      at::stack({result.logprobs.detach(), result.entropy.detach()}).to(at::kCPU, at::kFloat);
  const float* data = both.const_data_ptr<float>();
  const int64_t n = both.size(1);
  TargetLogprobs out;
  out.logprobs.assign(data, data + n);
  out.entropy.assign(data + n, data + 2 * n);
  return out;
}

absl::Status Failed(const MicroBatch& micro, const std::exception& e) {
  return StatusFromException(absl::StrCat("training pass over ", micro.batch.token_ids.size(),
                                          " tokens in ", micro.batch.segments.size(), " segments"),
                             e);
}

}  // namespace

absl::StatusOr<TargetLogprobs> ComputeLogprobs(Transformer& model, const MicroBatch& micro,
                                               const PassOptions& options) {
  try {
    c10::NoGradGuard no_grad;
    MR_ASSIGN_OR_RETURN(LogprobResult result, Forward(model, micro, options));
    return ToHost(result);
  } catch (const std::exception& e) {
    return Failed(micro, e);
  }
}

absl::Status AccumulateGradient(Transformer& model, const MicroBatch& micro,
                                const PassOptions& options, const TokenLoss& loss) {
  try {
    c10::AutoGradMode grad_mode(true);
    model.flat_gradients();  // allocated before the first backward
    MR_ASSIGN_OR_RETURN(LogprobResult result, Forward(model, micro, options));
    const TargetLogprobs host = ToHost(result);
    at::Tensor gradient = at::zeros({static_cast<int64_t>(micro.rows.size())}, at::kFloat);
    MR_RETURN_IF_ERROR(loss(host, absl::MakeSpan(gradient.mutable_data_ptr<float>(),
                                                 static_cast<size_t>(gradient.numel()))));
    result.logprobs.backward(gradient.to(result.logprobs.device()));
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return Failed(micro, e);
  }
}

}  // namespace millrace
