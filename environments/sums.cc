#include "environments/sums.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "environments/problem_random.h"

namespace millrace {
namespace {

struct Pair {
  int64_t a = 0;
  int64_t b = 0;
};

std::string Question(const Pair& pair) {
  return absl::StrCat("What is ", pair.a, " + ", pair.b, "?\n");
}

std::string Demonstration(Pair pair, int64_t digits) {
  const int64_t sum = pair.a + pair.b;
  std::string scratch;
  int64_t carry = 0;
  for (int64_t column = 0; column < digits; ++column) {
    const int64_t a = pair.a % 10, b = pair.b % 10, total = a + b + carry;
    if (column > 0) scratch += " ";
    absl::StrAppend(&scratch, a, "+", b);
    if (column > 0) absl::StrAppend(&scratch, "+", carry);
    absl::StrAppend(&scratch, "=", total);
    carry = total / 10;
    pair = {pair.a / 10, pair.b / 10};
  }
  return absl::StrCat("<think>", scratch, "</think>\n#### ", sum);
}

class Sums : public Task {
 public:
  Sums(uint64_t seed, int64_t low, int64_t high, int64_t digits) : seed_(seed), digits_(digits) {
    for (int64_t a = low; a <= high; ++a) {
      for (int64_t b = low; b <= high; ++b) {
        (IsHeldOut(Question({a, b})) ? eval_ : train_).push_back({a, b});
      }
    }
    // Held-out problems are handed out without repeats as long as there are any.
    ProblemRandom random(seed, 1, 0);
    for (size_t i = eval_.size(); i > 1; --i) {
      std::swap(eval_[i - 1], eval_[random.Below(static_cast<int64_t>(i))]);
    }
  }

  std::string name() const override { return "sums"; }

  Problem Make(Split split, uint64_t id) const override {
    ProblemRandom random(seed_, 0, id);
    const Pair pair = split == Split::kEval
                          ? eval_[id % eval_.size()]
                          : train_[random.Below(static_cast<int64_t>(train_.size()))];
    Problem problem;
    problem.id = id;
    problem.text = Question(pair);
    problem.reference = absl::StrCat(pair.a + pair.b);
    problem.demonstration = Demonstration(pair, digits_);
    return problem;
  }

  Verdict Verify(const Problem& problem, absl::string_view completion) const override {
    Verdict verdict;
    verdict.correct = IsRight(problem.reference, completion);
    verdict.reward = verdict.correct ? 1 : 0;
    verdict.components = {{"exact", verdict.reward}};
    return verdict;
  }

 private:
  static bool IsRight(const std::string& sum, absl::string_view text) {
    if (!absl::ConsumePrefix(&text, "<think>")) return false;
    const size_t end = text.find("</think>\n#### ");
    if (end == absl::string_view::npos || end == 0) return false;
    const absl::string_view scratch = text.substr(0, end);
    if (absl::StrContains(scratch, "\n") || absl::StrContains(scratch, "think>")) return false;
    return absl::StripTrailingAsciiWhitespace(text.substr(end + 14)) == sum;
  }

  uint64_t seed_;
  int64_t digits_;
  std::vector<Pair> train_;
  std::vector<Pair> eval_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Task>> MakeSumsTask(uint64_t seed, int64_t max_number) {
  if (max_number < 9 || max_number > 999) {
    return absl::InvalidArgumentError(
        absl::StrCat("task sums: max_number is ", max_number, ", expected 9 to 999"));
  }
  const int64_t digits = max_number < 10 ? 1 : max_number < 100 ? 2 : 3;
  const int64_t low = digits == 1 ? 0 : digits == 2 ? 10 : 100;
  if (max_number < low + 9) {
    return absl::InvalidArgumentError(absl::StrCat("task sums: max_number ", max_number,
                                                   " leaves fewer than ten summands of ", digits,
                                                   " digits"));
  }
  return std::unique_ptr<Task>(new Sums(seed, low, max_number, digits));
}

}  // namespace millrace
