#include "evaluation/interval.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace millrace {

Interval WilsonInterval(double p, double n, double z) {
  if (n <= 0) return {0, 1};
  const double z2 = z * z;
  const double scale = 1 / (1 + z2 / n);
  const double center = scale * (p + z2 / (2 * n));
  const double half = scale * z * std::sqrt(p * (1 - p) / n + z2 / (4 * n * n));
  return {std::max(0.0, center - half), std::min(1.0, center + half)};
}

Proportion SimpleProportion(int64_t samples, int64_t correct, double z) {
  Proportion result;
  result.problems = samples;
  result.samples = samples;
  result.correct = correct;
  result.accuracy = samples > 0 ? static_cast<double>(correct) / static_cast<double>(samples) : 0;
  result.effective_samples = static_cast<double>(samples);
  result.interval = WilsonInterval(result.accuracy, result.effective_samples, z);
  return result;
}

Proportion ClusteredProportion(absl::Span<const ProblemResult> problems, double z) {
  int64_t samples = 0, correct = 0, clusters = 0;
  for (const ProblemResult& problem : problems) {
    samples += problem.samples;
    correct += problem.correct;
    clusters += problem.samples > 0 ? 1 : 0;
  }
  Proportion result = SimpleProportion(samples, correct, z);
  result.problems = clusters;
  if (clusters == 0) return result;
  const double p = result.accuracy;
  const double n = static_cast<double>(samples);
  const double m = static_cast<double>(clusters);
  const double most = n / m;  // one trial a problem
  double deff = most;
  if (p > 0 && p < 1 && clusters > 1) {
    // Variance of the ratio mean with problems as clusters (Taylor linearisation).
    double squares = 0;
    for (const ProblemResult& problem : problems) {
      const double residual =
          static_cast<double>(problem.correct) - p * static_cast<double>(problem.samples);
      squares += residual * residual;
    }
    const double clustered = m / (m - 1) * squares / (n * n);
    deff = clustered / (p * (1 - p) / n);
  }
  result.design_effect = std::clamp(deff, 1.0, most);
  result.effective_samples = n / result.design_effect;
  result.interval = WilsonInterval(p, result.effective_samples, z);
  return result;
}

std::string FormatShare(double share, const Interval& interval) {
  return absl::StrFormat("%.1f %% (95 %%: %.1f %% to %.1f %%)", 100 * share, 100 * interval.low,
                         100 * interval.high);
}

bool Touch(const Interval& a, const Interval& b) { return a.low <= b.high && b.low <= a.high; }

double PassAtK(int64_t n, int64_t c, int64_t k) {
  if (n - c < k) return 1;
  // The quotient of the binomials as a product, which does not overflow.
  double none = 1;
  for (int64_t i = n - c + 1; i <= n; ++i) {
    none *= 1 - static_cast<double>(k) / static_cast<double>(i);
  }
  return 1 - none;
}

}  // namespace millrace
