#include "learner/optimizer.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "learner/adamw_kernel.h"
#include "model/torch_status.h"

namespace millrace {
namespace {

// Elements of one unit of work. Partial sums are per unit, so results don't depend on threads.
constexpr int64_t kUnit = 1 << 16;

// Calls work(unit) for units 0..count-1 from up to `threads` threads.
void ForUnits(int64_t count, int threads, const std::function<void(int64_t)>& work) {
  const int64_t workers = std::clamp<int64_t>(count / 4, 1, std::max(threads, 1));
  auto run = [&](int64_t worker) {
    for (int64_t u = count * worker / workers; u < count * (worker + 1) / workers; ++u) work(u);
  };
  std::vector<std::thread> helpers;
  for (int64_t w = 1; w < workers; ++w) helpers.emplace_back(run, w);
  run(0);
  for (std::thread& helper : helpers) helper.join();
}

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

std::vector<DecayRange> DecayRanges(const Transformer& model) {
  std::vector<DecayRange> ranges;
  int64_t offset = 0;
  for (const NamedParameter& parameter : model.parameters()) {
    const int64_t size = parameter.tensor.numel();
    const bool exempt =
        EndsWith(parameter.name, "norm.weight") || EndsWith(parameter.name, ".bias");
    ranges.push_back({offset, offset + size, !exempt});
    offset += size;
  }
  return ranges;
}

absl::StatusOr<std::unique_ptr<AdamW>> AdamW::Create(at::Tensor parameters, at::Tensor gradients,
                                                     std::vector<DecayRange> ranges,
                                                     Options options) {
  const int64_t size = parameters.numel();
  if (gradients.numel() != size || !parameters.is_contiguous() || !gradients.is_contiguous() ||
      parameters.scalar_type() != at::kFloat || gradients.scalar_type() != at::kFloat) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer: ", size, " parameters and ",
                                                   gradients.numel(),
                                                   " gradients must be flat fp32 of one size"));
  }
  int64_t at = 0;
  for (const DecayRange& range : ranges) {
    if (range.begin != at || range.end < range.begin) {
      return absl::InvalidArgumentError(absl::StrCat("optimizer: decay range [", range.begin, ", ",
                                                     range.end, ") does not go on at element ",
                                                     at));
    }
    at = range.end;
  }
  if (at != size) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer: decay ranges cover ", at, " of ", size, " elements"));
  }
  return std::unique_ptr<AdamW>(
      new AdamW(std::move(parameters), std::move(gradients), std::move(ranges), options));
}

AdamW::AdamW(at::Tensor parameters, at::Tensor gradients, std::vector<DecayRange> ranges,
             Options options)
    : p_(parameters.detach()),
      g_(std::move(gradients)),
      m_(at::zeros_like(p_)),
      v_(at::zeros_like(p_)),
      ranges_(std::move(ranges)),
      options_(options) {}

double AdamW::GradNorm() const {
  if (!g_.is_cpu()) return at::linalg_vector_norm(g_).item<double>();
  const int64_t size = g_.numel();
  const int64_t units = (size + kUnit - 1) / kUnit;
  std::vector<double> partial(units);
  const float* g = g_.const_data_ptr<float>();
  ForUnits(units, options_.threads, [&](int64_t u) {
    partial[u] = SumOfSquares(g + u * kUnit, std::min(kUnit, size - u * kUnit));
  });
  double sum = 0;
  for (double value : partial) sum += value;
  return std::sqrt(sum);
}

absl::StatusOr<AdamW::StepInfo> AdamW::Step(double lr) {
  try {
    StepInfo info;
    info.grad_norm = GradNorm();
    if (!std::isfinite(info.grad_norm)) {
      g_.zero_();
      return info;
    }
    double clip = 1;
    if (options_.max_grad_norm > 0) {
      clip = std::min(1.0, options_.max_grad_norm / (info.grad_norm + 1e-6));
    }
    ++updates_;
    if (p_.is_cpu()) {
      UpdateHost(lr, clip);
    } else {
      UpdateDevice(lr, clip);
    }
    info.applied = true;
    return info;
  } catch (const std::exception& e) {
    return StatusFromException(absl::StrCat("optimizer step ", updates_), e);
  }
}

void AdamW::UpdateHost(double lr, double clip) {
  float* p = p_.mutable_data_ptr<float>();
  float* g = g_.mutable_data_ptr<float>();
  float* m = m_.mutable_data_ptr<float>();
  float* v = v_.mutable_data_ptr<float>();
  AdamWConstants c;
  c.clip = static_cast<float>(clip);
  c.beta1 = static_cast<float>(options_.beta1);
  c.beta2 = static_cast<float>(options_.beta2);
  c.one_minus_beta1 = static_cast<float>(1 - options_.beta1);
  c.one_minus_beta2 = static_cast<float>(1 - options_.beta2);
  c.eps = static_cast<float>(options_.eps);
  c.step = static_cast<float>(lr / (1 - std::pow(options_.beta1, updates_)));
  c.inverse_root = static_cast<float>(1 / std::sqrt(1 - std::pow(options_.beta2, updates_)));
  const auto decayed = static_cast<float>(1 - lr * options_.weight_decay);
  const int64_t size = p_.numel();
  const int64_t units = (size + kUnit - 1) / kUnit;
  ForUnits(units, options_.threads, [&](int64_t u) {
    const int64_t begin = u * kUnit;
    const int64_t end = std::min(begin + kUnit, size);
    auto range = std::upper_bound(ranges_.begin(), ranges_.end(), begin,
                                  [](int64_t at, const DecayRange& r) { return at < r.end; });
    for (int64_t at = begin; at < end; ++range) {
      const int64_t stop = std::min(end, range->end);
      AdamWConstants own = c;
      own.keep = range->decay ? decayed : 1.0f;
      AdamWUpdate(own, p + at, g + at, m + at, v + at, stop - at);
      at = stop;
    }
  });
}

void AdamW::UpdateDevice(double lr, double clip) {
  c10::NoGradGuard no_grad;
  if (clip != 1) g_.mul_(clip);
  m_.mul_(options_.beta1).add_(g_, 1 - options_.beta1);
  v_.mul_(options_.beta2).addcmul_(g_, g_, 1 - options_.beta2);
  if (options_.weight_decay != 0) {
    for (const DecayRange& range : ranges_) {
      if (!range.decay || range.end == range.begin) continue;
      p_.narrow(0, range.begin, range.end - range.begin).mul_(1 - lr * options_.weight_decay);
    }
  }
  const double root = std::sqrt(1 - std::pow(options_.beta2, updates_));
  at::Tensor denominator = v_.sqrt().div_(root).add_(options_.eps);
  p_.addcdiv_(m_, denominator, -lr / (1 - std::pow(options_.beta1, updates_)));
  g_.zero_();
}

absl::Status AdamW::Restore(int64_t updates, const at::Tensor& first, const at::Tensor& second) {
  if (first.numel() != m_.numel() || second.numel() != v_.numel()) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer: moments of ", first.numel(), " and ",
                                                   second.numel(), " elements for ", m_.numel(),
                                                   " parameters"));
  }
  m_.copy_(first);
  v_.copy_(second);
  updates_ = updates;
  return absl::OkStatus();
}

}  // namespace millrace
