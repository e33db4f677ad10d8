#include "model/logprobs.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "model/kernels/train_softmax.h"
#include "model/matrix_products.h"

namespace millrace {
namespace {

// Everything but the gradients of one call. Tensors detached, contiguous.
struct Problem {
  at::Tensor hidden, lm_head, targets;
  LogprobOptions options;

  int64_t rows() const { return hidden.size(0); }
  at::Tensor NewBuffer() const {
    return at::empty({std::min(options.chunk, rows()), lm_head.size(0)}, hidden.options());
  }
  // logits (not divided by the temperature) of rows begin..begin+n in the front of `buffer`.
  at::Tensor Logits(at::Tensor& buffer, int64_t begin, int64_t n) const {
    at::Tensor out = buffer.narrow(0, 0, n);
    MultiplyInto(options.compute, out, {}, hidden.narrow(0, begin, n), lm_head.t());
    return out;
  }
  SoftmaxRows Rows(at::Tensor& logits, int64_t begin) const {
    return {logits.data_ptr<float>(), targets.const_data_ptr<int64_t>() + begin, logits.size(0),
            logits.size(1), static_cast<float>(1.0 / options.temperature)};
  }
};

struct Statistics {
  at::Tensor log_sum, logprobs, entropy;  // (N)
};

Statistics Evaluate(const Problem& p) {
  const int64_t rows = p.rows();
  Statistics s{at::empty({rows}, p.hidden.options()), at::empty({rows}, p.hidden.options()),
               at::empty({rows}, p.hidden.options())};
  at::Tensor buffer = p.NewBuffer();
  for (int64_t begin = 0; begin < rows; begin += p.options.chunk) {
    const int64_t n = std::min(p.options.chunk, rows - begin);
    at::Tensor logits = p.Logits(buffer, begin, n);
    if (logits.is_cpu()) {
      SoftmaxStatistics(p.Rows(logits, begin), s.log_sum.data_ptr<float>() + begin,
                        s.logprobs.data_ptr<float>() + begin, s.entropy.data_ptr<float>() + begin);
      continue;
    }
    logits.mul_(1.0 / p.options.temperature);
    at::Tensor log_sum = at::logsumexp(logits, -1);
    at::Tensor chosen = logits.gather(1, p.targets.narrow(0, begin, n).unsqueeze(1)).squeeze(1);
    s.log_sum.narrow(0, begin, n).copy_(log_sum);
    s.logprobs.narrow(0, begin, n).copy_(chosen - log_sum);
    at::Tensor mean = (at::exp(logits - log_sum.unsqueeze(1)).mul_(logits)).sum(-1);
    s.entropy.narrow(0, begin, n).copy_(log_sum - mean);
  }
  return s;
}

// d_hidden may be undefined (not wanted); d_head is added to, may be undefined.
void Differentiate(const Problem& p, const at::Tensor& log_sum, const at::Tensor& grad,
                   at::Tensor& d_hidden, at::Tensor& d_head) {
  const int64_t rows = p.rows();
  at::Tensor buffer = p.NewBuffer();
  for (int64_t begin = 0; begin < rows; begin += p.options.chunk) {
    const int64_t n = std::min(p.options.chunk, rows - begin);
    at::Tensor d_logits = p.Logits(buffer, begin, n);
    if (d_logits.is_cpu()) {
      SoftmaxGradient(p.Rows(d_logits, begin), log_sum.const_data_ptr<float>() + begin,
                      grad.const_data_ptr<float>() + begin);
    } else {
      at::Tensor scale = (grad.narrow(0, begin, n) * (1.0 / p.options.temperature)).unsqueeze(1);
      d_logits.mul_(1.0 / p.options.temperature)
          .sub_(log_sum.narrow(0, begin, n).unsqueeze(1))
          .exp_();
      d_logits.mul_(-scale);
      d_logits.scatter_add_(1, p.targets.narrow(0, begin, n).unsqueeze(1), scale);
    }
    if (d_hidden.defined()) {
      at::Tensor out = d_hidden.narrow(0, begin, n);
      MultiplyInto(p.options.compute, out, {}, d_logits, p.lm_head);
    }
    if (d_head.defined()) {
      MultiplyInto(p.options.compute, d_head, d_head, d_logits.t(), p.hidden.narrow(0, begin, n));
    }
  }
}

class SelectedLogprobsFunction : public torch::autograd::Function<SelectedLogprobsFunction> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const at::Tensor& hidden, const at::Tensor& lm_head,
                                                const at::Tensor& targets,
                                                const LogprobOptions& options) {
    const Statistics s = Evaluate({hidden.contiguous(), lm_head, targets, options});
    context->save_for_backward({hidden, lm_head, targets, s.log_sum});
    context->saved_data["temperature"] = options.temperature;
    context->saved_data["chunk"] = options.chunk;
    context->saved_data["bf16"] = options.compute == ComputeType::kBfloat16;
    // Kept apart: a gradient that is there already is added to, past autograd.
    if (lm_head.grad().defined()) context->saved_data["head_grad"] = lm_head.grad();
    context->mark_non_differentiable({s.entropy});
    return {s.logprobs, s.entropy};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const Problem p{
        saved[0].contiguous(),
        saved[1].detach(),
        saved[2],
        {context->saved_data["temperature"].toDouble(), context->saved_data["chunk"].toInt(),
         context->saved_data["bf16"].toBool() ? ComputeType::kBfloat16 : ComputeType::kFloat32}};
    at::Tensor d_hidden, d_head, new_head;
    if (context->needs_input_grad(0)) d_hidden = at::empty_like(p.hidden);
    if (context->needs_input_grad(1)) {
      const auto kept = context->saved_data.find("head_grad");
      if (kept != context->saved_data.end()) {
        d_head = kept->second.toTensor();
      } else {
        new_head = at::zeros_like(p.lm_head);
        d_head = new_head;
      }
    }
    Differentiate(p, saved[3], gradients[0].contiguous(), d_hidden, d_head);
    return {d_hidden, new_head, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

LogprobResult SelectedLogprobs(const at::Tensor& hidden, const at::Tensor& lm_head,
                               const at::Tensor& targets, const LogprobOptions& options) {
  TORCH_CHECK(hidden.dim() == 2 && lm_head.dim() == 2 && hidden.size(1) == lm_head.size(1),
              "SelectedLogprobs: hidden is ", hidden.sizes(), " and lm_head ", lm_head.sizes());
  TORCH_CHECK(
      targets.dim() == 1 && targets.size(0) == hidden.size(0) && targets.scalar_type() == at::kLong,
      "SelectedLogprobs: targets must be int64 of ", hidden.size(0), " rows");
  TORCH_CHECK(options.temperature > 0 && options.chunk > 0, "SelectedLogprobs: temperature ",
              options.temperature, " and chunk ", options.chunk, " must be above 0");
  const at::Tensor ids = targets.contiguous();
  if (c10::GradMode::is_enabled() && (hidden.requires_grad() || lm_head.requires_grad())) {
    torch::autograd::variable_list out =
        SelectedLogprobsFunction::apply(hidden, lm_head, ids, options);
    return {out[0], out[1]};
  }
  const Statistics s = Evaluate({hidden.contiguous().detach(), lm_head.detach(), ids, options});
  return {s.logprobs, s.entropy};
}

}  // namespace millrace
