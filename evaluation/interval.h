// Accuracies with their uncertainty. Pure functions, thread-safe.
#ifndef MILLRACE_EVALUATION_INTERVAL_H_
#define MILLRACE_EVALUATION_INTERVAL_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"

namespace millrace {

inline constexpr double kZ95 = 1.959963984540054;  // two-sided 95 % of the standard normal

struct Interval {
  double low = 0;
  double high = 1;
};

// Wilson score interval (E. B. Wilson, "Probable inference, the law of succession, and statistical
// inference", JASA 22, 1927) of a proportion `p` seen in `n` independent trials; n may be a
// fraction (an effective sample size). Within [0, 1]; [0, 1] when n <= 0. Not of width 0 at p = 0
// or 1.
Interval WilsonInterval(double p, double n, double z = kZ95);

struct Proportion {
  int64_t problems = 0;
  int64_t samples = 0;  // all samples of all problems
  int64_t correct = 0;
  double accuracy = 0;  // correct / samples; 0 when there are no samples
  Interval interval;    // of the accuracy, 95 %
  // Kish's design effect and what it leaves of `samples`.
  double design_effect = 1;
  double effective_samples = 0;
};

// What one problem's samples came to.
struct ProblemResult {
  int64_t samples = 0;
  int64_t correct = 0;
};

// Accuracy over problems with several samples each. Samples of one problem resemble each other, so
// they count for less than independent ones: the interval is Wilson's with the effective sample
// size samples / deff (L. Kish, "Survey Sampling", 1965), where deff = (variance of the mean with
// problems as clusters) / (variance of as many independent samples), at least 1 and at most the
// mean number of samples a problem. With one sample a problem deff is 1. At accuracy 0 or 1, where
// nothing shows how alike samples are, deff is the mean number of samples a problem (each problem
// counts once), the cautious end.
Proportion ClusteredProportion(absl::Span<const ProblemResult> problems, double z = kZ95);

// `samples` independent trials.
Proportion SimpleProportion(int64_t samples, int64_t correct, double z = kZ95);

// "10.0 % (95 %: 5.5 % to 17.4 %)".
std::string FormatShare(double share, const Interval& interval);

// Whether two intervals have a point in common; ones that do not touch are a difference that
// needs no further test.
bool Touch(const Interval& a, const Interval& b);

// Unbiased estimate of pass@k from n samples of which c are right: 1 - C(n-c, k) / C(n, k)
// (M. Chen et al., "Evaluating Large Language Models Trained on Code", 2021). Needs
// 1 <= k <= n, 0 <= c <= n.
double PassAtK(int64_t n, int64_t c, int64_t k);

}  // namespace millrace

#endif  // MILLRACE_EVALUATION_INTERVAL_H_
