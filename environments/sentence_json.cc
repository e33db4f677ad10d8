#include "environments/sentence_json.h"

#include <iterator>
#include <regex>

#include "absl/strings/str_cat.h"
#include "environments/few_shot_task.h"

namespace millrace {
namespace {

constexpr const char* kNames[] = {
    "Maria", "Ahmed",  "Chen",  "Olga",  "Peter", "Fatima", "Jonas", "Lucia",  "Kenji", "Amara",
    "David", "Ingrid", "Paulo", "Nadia", "Tom",   "Sofia",  "Ravi",  "Emma",   "Ali",   "Hannah",
    "Marco", "Yuki",   "Lena",  "Omar",  "Clara", "Ivan",   "Grace", "Mateo",  "Priya", "Oscar",
    "Julia", "Hugo",   "Zara",  "Felix", "Alice", "Daniel", "Mina",  "Victor", "Elena", "Samuel"};
constexpr const char* kCities[] = {
    "Paris",  "Berlin", "Madrid",  "Rome",   "Vienna",  "Prague", "Oslo",    "Dublin",
    "Lisbon", "Athens", "Warsaw",  "Tokyo",  "Cairo",   "Lima",   "Boston",  "Chicago",
    "Denver", "Miami",  "Toronto", "Sydney", "Nairobi", "Delhi",  "Mumbai",  "Seoul",
    "Moscow", "Geneva", "Milan",   "Naples", "Hamburg", "Munich", "Bogota",  "Havana",
    "Austin", "Dallas", "Seattle", "Zurich", "Krakow",  "Porto",  "Bristol", "Quebec"};

std::string Json(absl::string_view name, absl::string_view age, absl::string_view city) {
  return absl::StrCat("{\"name\": \"", name, "\", \"age\": ", age, ", \"city\": \"", city, "\"}");
}

class SentenceJson : public FewShotTask {
 public:
  using FewShotTask::FewShotTask;

  std::optional<std::string> Baseline(const Problem& problem) const override {
    static const std::regex* const kFormat =
        new std::regex(R"(([A-Za-z]+), who is (\d+), lives in ([A-Za-z]+)\.)");
    const std::string line = LineOf(problem);
    std::smatch match;
    if (!std::regex_match(line, match, *kFormat)) return "{}";
    return Json(match.str(1), match.str(2), match.str(3));
  }

 protected:
  Shot Draw(ProblemRandom* random) const override {
    const std::string name = kNames[random->Below(std::size(kNames))];
    const std::string city = kCities[random->Below(std::size(kCities))];
    const std::string age = absl::StrCat(random->Between(18, 89));
    std::string line;
    switch (random->Below(3)) {
      case 0:
        line = absl::StrCat(name, ", who is ", age, ", lives in ", city, ".");
        break;
      case 1:
        line = absl::StrCat(name, " from ", city, " turned ", age, " last week.");
        break;
      default:
        line = absl::StrCat("At ", age, ", ", name, " moved to ", city, ".");
    }
    return {line, Json(name, age, city)};
  }
};

}  // namespace

std::unique_ptr<Task> MakeSentenceJsonTask(uint64_t seed, bool partial_credit) {
  FewShotTask::Options options;
  options.name = "sentence_json";
  options.prompt = "Text to JSON with keys name, age, city: ";
  options.shots = {{"Bob is 41 and lives in London.", Json("Bob", "41", "London")}};
  options.seed = seed;
  options.partial_credit = partial_credit;
  return std::make_unique<SentenceJson>(std::move(options));
}

}  // namespace millrace
