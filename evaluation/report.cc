#include "evaluation/report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/trajectory.h"

namespace millrace {
namespace {

constexpr double kHardlyEver = 0.02;
constexpr double kNearlyAlways = 0.98;
constexpr double kFewMixed = 0.2;
constexpr double kMostly = 0.9;
constexpr int64_t kFewProblems = 30;

using Json = nlohmann::ordered_json;

std::string Percent(double fraction) { return absl::StrFormat("%.1f %%", 100 * fraction); }

// "10.0 % (95 %: 5.5 % to 17.4 %) of the groups of 8 have rewards that differ, so a step samples
// about 10 groups for each that it trains on".
std::string MixedGroups(const EvaluationReport& report, int64_t k) {
  std::string text = absl::StrCat(FormatShare(report.mixed, report.mixed_interval),
                                  " of the groups of ", k, " have rewards that differ");
  if (report.mixed > 0 && report.mixed < 0.5) {
    absl::StrAppend(&text, ", so a step samples about ", std::lround(1 / report.mixed),
                    " groups for each that it trains on");
  }
  return text;
}

// Of the groups whose rewards do not differ.
bool Mostly(double share, const EvaluationReport& report) {
  constexpr double kRounding = 1e-9;
  return report.mixed < 1 && share >= kMostly * (1 - report.mixed) - kRounding;
}

bool AtLeast(const std::optional<Proportion>& proportion, double least) {
  return proportion.has_value() && proportion->accuracy >= least;
}

std::string TooHard(const EvaluationReport& report, const PassAt& pass) {
  std::string text =
      absl::StrCat("too hard for this model: pass@", pass.k, " is ", Percent(pass.value), ", and ",
                   MixedGroups(report, pass.k),
                   ". Warm it up on demonstrations first (millrace sft), or take a bigger model");
  if (pass.value > kHardlyEver) absl::StrAppend(&text, "; larger groups may help too");
  if (report.truncated_fraction >= 0.5) {  // not hardly ever right then, which is cut_off
    absl::StrAppend(&text, "; so may longer answers, ", Percent(report.truncated_fraction),
                    " end at the length limit");
  }
  return text;
}

// Samples of the problem with the fewest; 0 when there is none.
int64_t FewestSamples(absl::Span<const ProblemOutcome> outcomes) {
  int64_t fewest = outcomes.empty() ? 0 : outcomes[0].samples;
  for (const ProblemOutcome& outcome : outcomes) fewest = std::min(fewest, outcome.samples);
  return fewest;
}

std::vector<PassAt> EstimatePassAt(absl::Span<const ProblemOutcome> outcomes) {
  const int64_t most = FewestSamples(outcomes);
  std::vector<int64_t> ks;
  for (int64_t k = 1; k < most; k *= 2) ks.push_back(k);
  if (most > 0) ks.push_back(most);
  std::vector<PassAt> result;
  const auto n = static_cast<double>(outcomes.size());
  for (const int64_t k : ks) {
    PassAt pass;
    pass.k = k;
    for (const ProblemOutcome& outcome : outcomes) {
      pass.value += PassAtK(outcome.samples, outcome.correct, k) / n;
    }
    pass.value = std::min(pass.value, 1.0);  // the sum rounds
    pass.interval = WilsonInterval(pass.value, n);
    result.push_back(pass);
  }
  return result;
}

struct Tally {
  std::vector<ProblemResult> sampled;
  int64_t greedy = 0, greedy_correct = 0;

  void Add(const ProblemOutcome& outcome) {
    if (outcome.samples > 0) sampled.push_back({outcome.samples, outcome.correct});
    if (outcome.greedy.has_value()) {
      ++greedy;
      greedy_correct += *outcome.greedy ? 1 : 0;
    }
  }
};

Json ToJson(const Proportion& p) {
  return {{"problems", p.problems}, {"samples", p.samples},  {"correct", p.correct},
          {"accuracy", p.accuracy}, {"low", p.interval.low}, {"high", p.interval.high}};
}

}  // namespace

EvaluationReport SummariseEvaluation(absl::Span<const ProblemOutcome> outcomes) {
  EvaluationReport report;
  report.problems = static_cast<int64_t>(outcomes.size());
  Tally all;
  std::map<std::string, Tally> sources;
  int64_t samples = 0, tokens = 0, truncated = 0, baselines = 0, baseline_correct = 0;
  int64_t mixed = 0, all_wrong = 0, all_right = 0;
  for (const ProblemOutcome& outcome : outcomes) {
    all.Add(outcome);
    sources[outcome.source].Add(outcome);
    samples += outcome.samples;
    tokens += outcome.tokens;
    truncated += outcome.truncated;
    if (outcome.samples > 1) {
      const bool differ = outcome.highest_reward - outcome.lowest_reward > kRewardTolerance;
      ++report.groups;
      mixed += differ ? 1 : 0;
      all_wrong += !differ && outcome.correct == 0 ? 1 : 0;
      all_right += !differ && outcome.correct == outcome.samples ? 1 : 0;
    }
    if (outcome.baseline.has_value()) {
      ++baselines;
      baseline_correct += *outcome.baseline ? 1 : 0;
    }
  }
  if (!all.sampled.empty()) report.sampled = ClusteredProportion(all.sampled);
  if (all.greedy > 0) report.greedy = SimpleProportion(all.greedy, all.greedy_correct);
  if (baselines > 0) report.baseline = SimpleProportion(baselines, baseline_correct);
  report.pass_at = EstimatePassAt(outcomes);
  if (report.groups > 0) {
    const auto n = static_cast<double>(report.groups);
    report.mixed = static_cast<double>(mixed) / n;
    report.mixed_interval = WilsonInterval(report.mixed, n);
    report.all_wrong = static_cast<double>(all_wrong) / n;
    report.all_right = static_cast<double>(all_right) / n;
  }
  if (samples > 0) {
    report.tokens_mean = static_cast<double>(tokens) / static_cast<double>(samples);
    report.truncated_fraction = static_cast<double>(truncated) / static_cast<double>(samples);
  }
  if (sources.size() > 1) {
    for (const auto& [source, tally] : sources) {
      if (!tally.sampled.empty()) {
        report.sampled_by_source[source] = ClusteredProportion(tally.sampled);
      }
      if (tally.greedy > 0) {
        report.greedy_by_source[source] = SimpleProportion(tally.greedy, tally.greedy_correct);
      }
    }
  }
  report.advice = AdviceFor(report);
  return report;
}

Advice AdviceFor(const EvaluationReport& report) {
  const bool grouped = report.groups > 0 && report.pass_at.back().k > 1;
  const PassAt pass = grouped ? report.pass_at.back() : PassAt();
  const bool hardly_ever = grouped && pass.value <= kHardlyEver;
  const bool few_mixed = grouped && report.mixed_interval.high < kFewMixed;
  const bool all_right = few_mixed && Mostly(report.all_right, report);
  Advice advice;
  if (hardly_ever && report.truncated_fraction >= 0.5) {
    advice.verdict = "cut_off";
    advice.text = absl::StrCat(Percent(report.truncated_fraction),
                               " of the samples end at the length limit and hardly one is right: "
                               "allow longer answers before judging the task");
  } else if ((AtLeast(report.greedy, kNearlyAlways) && !hardly_ever) ||
             AtLeast(report.sampled, kNearlyAlways) || all_right) {
    advice.verdict = "saturated";
    advice.text = all_right || !grouped
                      ? "saturated: the model can do this already, so nearly every group would be "
                        "all right and be dropped. Take a harder task, or a mixture"
                      : absl::StrCat(
                            "saturated: most answers are right already; training would "
                            "only make the samples agree with them (",
                            MixedGroups(report, pass.k), "). Take a harder task, or a mixture");
  } else if (!grouped) {
    advice.verdict = "unknown";
    advice.text = "two samples a problem or more are needed to say whether this can be trained on";
  } else if (few_mixed && Mostly(report.all_wrong, report)) {
    advice.verdict = "too_hard";
    advice.text = TooHard(report, pass);
  } else if (few_mixed) {
    advice.verdict = "weak";
    advice.text = absl::StrCat("weak signal: ", MixedGroups(report, pass.k),
                               ". Larger groups, a warm-up or partial credit help");
  } else if (report.mixed_interval.low < kFewMixed) {
    advice.verdict = "unknown";
    advice.text = absl::StrCat(MixedGroups(report, pass.k), ": more problems would tell whether ",
                               Percent(kFewMixed), " or more do, which is worth training on");
  } else {
    advice.verdict = "trainable";
    advice.text = absl::StrCat(MixedGroups(report, pass.k), ": this can be trained on");
  }
  if (report.problems < kFewProblems) {
    absl::StrAppend(&advice.text, " (of ", report.problems,
                    " problems only: look at the intervals)");
  }
  return advice;
}

Json EvaluationToJson(const EvaluationReport& report) {
  Json json = {{"problems", report.problems}};
  if (report.greedy.has_value()) json["greedy"] = ToJson(*report.greedy);
  if (report.sampled.has_value()) {
    json["sampled"] = ToJson(*report.sampled);
    Json& passes = json["pass_at"] = Json::array();
    for (const PassAt& pass : report.pass_at) {
      passes.push_back({{"k", pass.k},
                        {"value", pass.value},
                        {"low", pass.interval.low},
                        {"high", pass.interval.high}});
    }
    if (report.groups > 0) {
      json["mixed_groups"] = {{"value", report.mixed},
                              {"low", report.mixed_interval.low},
                              {"high", report.mixed_interval.high},
                              {"all_wrong", report.all_wrong},
                              {"all_right", report.all_right}};
    }
    json["tokens_mean"] = report.tokens_mean;
    json["truncated_fraction"] = report.truncated_fraction;
  }
  if (report.baseline.has_value()) json["baseline"] = ToJson(*report.baseline);
  for (const auto& [source, proportion] : report.greedy_by_source) {
    json["by_source"][source]["greedy"] = ToJson(proportion);
  }
  for (const auto& [source, proportion] : report.sampled_by_source) {
    json["by_source"][source]["sampled"] = ToJson(proportion);
  }
  json["advice"] = {{"verdict", report.advice.verdict}, {"text", report.advice.text}};
  return json;
}

}  // namespace millrace
