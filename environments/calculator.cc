#include "environments/calculator.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "environments/few_shot_task.h"

namespace millrace {
namespace {

struct Operation {
  const char* word;
  const char* op;
};
constexpr Operation kOperations[] = {{"plus", "add"}, {"minus", "sub"}, {"times", "mul"}};

FewShotTask::Shot MakeShot(const Operation& operation, int64_t a, int64_t b) {
  return {absl::StrCat("what is ", a, " ", operation.word, " ", b, "?"),
          absl::StrCat("{\"op\": \"", operation.op, "\", \"a\": ", a, ", \"b\": ", b, "}")};
}

class Calculator : public FewShotTask {
 public:
  using FewShotTask::FewShotTask;

 protected:
  Shot Draw(ProblemRandom* random) const override {
    const Operation& operation = kOperations[random->Below(std::size(kOperations))];
    const int64_t a = random->Between(2, 99), b = random->Between(2, 99);
    return MakeShot(operation, a, b);
  }
};

}  // namespace

std::unique_ptr<Task> MakeCalculatorTask(uint64_t seed, bool partial_credit) {
  FewShotTask::Options options;
  options.name = "calculator";
  options.prompt = "Calculator call: ";
  options.shots = {MakeShot(kOperations[0], 3, 4), MakeShot(kOperations[1], 12, 5),
                   MakeShot(kOperations[2], 6, 7)};
  options.seed = seed;
  options.partial_credit = partial_credit;
  return std::make_unique<Calculator>(std::move(options));
}

}  // namespace millrace
