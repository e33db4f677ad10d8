#include "environments/mixture.h"

#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "environments/weighted_order.h"

namespace millrace {
namespace {

std::vector<double> Weights(const std::vector<MixturePart>& parts) {
  std::vector<double> weights;
  weights.reserve(parts.size());
  for (const MixturePart& part : parts) weights.push_back(part.weight);
  return weights;
}

class Mixture : public Task {
 public:
  explicit Mixture(std::vector<MixturePart> parts)
      : parts_(std::move(parts)), order_(Weights(parts_)) {
    for (const MixturePart& part : parts_) {
      has_baseline_ =
          has_baseline_ && part.task->Baseline(part.task->Make(Split::kEval, 0)).has_value();
    }
  }

  std::string name() const override { return "mixture"; }

  Problem Make(Split split, uint64_t id) const override {
    const WeightedOrder::Slot slot = order_.At(id);
    Problem problem = parts_[slot.source].task->Make(split, slot.ordinal);
    problem.id = id;
    problem.source = parts_[slot.source].task->name();
    return problem;
  }

  Verdict Verify(const Problem& problem, absl::string_view completion) const override {
    Problem inner = problem;
    return PartOf(&inner).Verify(inner, completion);
  }

  std::optional<std::string> Baseline(const Problem& problem) const override {
    if (!has_baseline_) return std::nullopt;
    Problem inner = problem;
    return PartOf(&inner).Baseline(inner);
  }

  std::vector<std::string> StopStrings() const override {
    std::set<std::string> all;
    for (const MixturePart& part : parts_) {
      for (std::string& text : part.task->StopStrings()) all.insert(std::move(text));
    }
    return {all.begin(), all.end()};
  }

  std::string Digest() const override {
    std::string all;
    for (const MixturePart& part : parts_) {
      const std::string digest = part.task->Digest();
      if (!digest.empty()) absl::StrAppend(&all, all.empty() ? "" : "-", digest);
    }
    return all;
  }

  std::vector<std::string> Notes() const override {
    std::vector<std::string> all;
    for (const MixturePart& part : parts_) {
      for (const std::string& note : part.task->Notes()) {
        all.push_back(absl::StrCat(part.task->name(), ": ", note));
      }
    }
    return all;
  }

 private:
  // The part that made `problem`, whose id becomes that of the part.
  const Task& PartOf(Problem* problem) const {
    const WeightedOrder::Slot slot = order_.At(problem->id);
    problem->id = slot.ordinal;
    return *parts_[slot.source].task;
  }

  const std::vector<MixturePart> parts_;
  const WeightedOrder order_;
  bool has_baseline_ = true;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Task>> MakeMixtureTask(std::vector<MixturePart> parts) {
  if (parts.empty()) {
    return absl::InvalidArgumentError("task mixture has no parts");
  }
  std::set<std::string> names;
  for (const MixturePart& part : parts) {
    if (!names.insert(part.task->name()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("task mixture has two parts called ", part.task->name()));
    }
  }
  return std::unique_ptr<Task>(new Mixture(std::move(parts)));
}

}  // namespace millrace
