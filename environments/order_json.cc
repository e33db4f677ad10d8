#include "environments/order_json.h"

#include <iterator>
#include <regex>

#include "absl/strings/str_cat.h"
#include "environments/few_shot_task.h"

namespace millrace {
namespace {

constexpr const char* kThings[] = {
    "eggs",    "figs",    "apples",  "pears",   "plums",  "lemons",   "limes", "grapes", "melons",
    "peaches", "onions",  "beans",   "carrots", "leeks",  "radishes", "cakes", "pies",   "rolls",
    "bagels",  "muffins", "cookies", "donuts",  "pizzas", "burgers",  "tacos", "wraps",  "salads",
    "soups",   "teas",    "coffees", "juices",  "cups",   "plates",   "forks", "spoons", "candles"};

std::string Json(absl::string_view a, absl::string_view count_a, absl::string_view b,
                 absl::string_view count_b) {
  return absl::StrCat("{\"", a, "\": ", count_a, ", \"", b, "\": ", count_b, "}");
}

class OrderJson : public FewShotTask {
 public:
  using FewShotTask::FewShotTask;

  std::optional<std::string> Baseline(const Problem& problem) const override {
    static const std::regex* const kFormat =
        new std::regex(R"(I would like (\d+) ([a-z]+) and (\d+) ([a-z]+)\.)");
    const std::string line = LineOf(problem);
    std::smatch match;
    if (!std::regex_match(line, match, *kFormat)) return "{}";
    return Json(match.str(2), match.str(1), match.str(4), match.str(3));
  }

 protected:
  Shot Draw(ProblemRandom* random) const override {
    const int64_t things = static_cast<int64_t>(std::size(kThings));
    const int64_t first = random->Below(things);
    const int64_t second = (first + 1 + random->Below(things - 1)) % things;
    const std::string a = kThings[first], b = kThings[second];
    const std::string count_a = absl::StrCat(random->Between(2, 12));
    const std::string count_b = absl::StrCat(random->Between(2, 12));
    const std::string order = absl::StrCat(count_a, " ", a, " and ", count_b, " ", b);
    std::string line;
    switch (random->Below(4)) {
      case 0:
        line = absl::StrCat("I would like ", order, ".");
        break;
      case 1:
        line = absl::StrCat("Can I get ", order, "?");
        break;
      case 2:
        line = absl::StrCat("Please bring me ", order, ".");
        break;
      default:
        line = absl::StrCat("We need ", order, " for tonight.");
    }
    return {line, Json(a, count_a, b, count_b)};
  }
};

}  // namespace

std::unique_ptr<Task> MakeOrderJsonTask(uint64_t seed, bool partial_credit) {
  FewShotTask::Options options;
  options.name = "order_json";
  options.prompt = "Order to JSON: ";
  options.shots = {{"Can I get 4 melons and 7 grapes?", Json("melons", "4", "grapes", "7")}};
  options.seed = seed;
  options.partial_credit = partial_credit;
  return std::make_unique<OrderJson>(std::move(options));
}

}  // namespace millrace
