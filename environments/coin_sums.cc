#include "environments/coin_sums.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "environments/problem_random.h"

namespace millrace {
namespace {

class CoinSums : public Task {
 public:
  CoinSums(uint64_t seed, int64_t max_number) : seed_(seed), max_number_(max_number) {}

  std::string name() const override { return "coin_sums"; }

  Problem Make(Split split, uint64_t id) const override {
    ProblemRandom random(seed_, split == Split::kEval ? 1 : 0, id);
    Problem problem;
    problem.id = id;
    do {
      const int64_t a = random.Between(0, max_number_), b = random.Between(0, max_number_);
      problem.text = absl::StrCat(a, "+", b, "=");
      problem.reference = absl::StrCat(a + b);
    } while (IsHeldOut(problem.text) != (split == Split::kEval));
    problem.demonstration = problem.reference;
    return problem;
  }

  Verdict Verify(const Problem& problem, absl::string_view completion) const override {
    uint64_t hash = MixWord(seed_ ^ problem.id);
    for (char c : completion) hash = MixWord(hash ^ static_cast<uint8_t>(c)) + 1;
    Verdict verdict;
    verdict.correct = completion == problem.reference;
    verdict.reward = static_cast<double>(hash % 1024) / 1024;
    verdict.components = {{"coin", verdict.reward}};
    return verdict;
  }

 private:
  uint64_t seed_;
  int64_t max_number_;
};

}  // namespace

std::unique_ptr<Task> MakeCoinSumsTask(uint64_t seed, int64_t max_number) {
  return std::make_unique<CoinSums>(seed, max_number);
}

}  // namespace millrace
