#include "environments/log_json.h"

#include <regex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "environments/json_answer.h"
#include "environments/problem_random.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

constexpr const char* kLevels[] = {"DEBUG", "INFO", "WARN", "ERROR"};
constexpr const char* kHosts[] = {"db", "web", "api", "cache", "queue", "auth", "proxy", "mail"};
constexpr const char* kPrompt = "Log line to JSON with keys level, host, ms: ";

struct Record {
  std::string line;
  std::string json;
};

std::string RecordJson(absl::string_view level, absl::string_view host, absl::string_view ms) {
  return absl::StrCat("{\"level\": \"", level, "\", \"host\": \"", host, "\", \"ms\": ", ms, "}");
}

Record DrawRecord(ProblemRandom* random) {
  const std::string level = kLevels[random->Below(std::size(kLevels))];
  const std::string host =
      absl::StrCat(kHosts[random->Below(std::size(kHosts))], "-", random->Between(1, 20));
  const int64_t ms = random->Between(1, 999);
  const std::string time =
      absl::StrFormat("%02d:%02d", random->Between(0, 23), random->Between(0, 59));
  const int64_t second = random->Between(0, 59);
  Record record;
  record.json = RecordJson(level, host, absl::StrCat(ms));
  switch (random->Below(10)) {
    case 6:
    case 7:
      record.line = absl::StrFormat("%s:%02d [%s] %s took %d ms", time, second, level, host, ms);
      break;
    case 8:
      record.line = absl::StrFormat("%s %s %s: done in %dms", level, time, host, ms);
      break;
    case 9:
      record.line = absl::StrFormat("%s level=%s host=%s duration_ms=%d", time, level, host, ms);
      break;
    default:
      record.line = absl::StrFormat("%s %s host=%s latency=%dms", time, level, host, ms);
  }
  return record;
}

Record DrawRecord(ProblemRandom* random, bool held_out) {
  Record record = DrawRecord(random);
  while (IsHeldOut(record.line) != held_out) record = DrawRecord(random);
  return record;
}

class LogJson : public Task {
 public:
  explicit LogJson(uint64_t seed) : seed_(seed) {}

  std::string name() const override { return "log_json"; }

  Problem Make(Split split, uint64_t id) const override {
    ProblemRandom random(seed_, split == Split::kEval ? 1 : 0, id);
    // An example never shows a held-out line.
    const Record example = DrawRecord(&random, false);
    const Record asked = DrawRecord(&random, split == Split::kEval);
    Problem problem;
    problem.id = id;
    problem.messages = {{"user", kPrompt + example.line},
                        {"assistant", example.json},
                        {"user", kPrompt + asked.line}};
    problem.reference = asked.json;
    problem.demonstration = asked.json;
    return problem;
  }

  Verdict Verify(const Problem& problem, absl::string_view completion) const override {
    const Json wanted = Json::parse(problem.reference, nullptr, /*allow_exceptions=*/false);
    Verdict verdict;
    verdict.correct = SameJson(ParseJsonAnswer(completion), wanted);
    verdict.reward = verdict.correct ? 1 : 0;
    verdict.components = {{"exact", verdict.reward}};
    return verdict;
  }

  std::optional<std::string> Baseline(const Problem& problem) const override {
    static const std::regex* const kFormat =
        new std::regex(R"(\d\d:\d\d ([A-Z]+) host=([a-z0-9-]+) latency=(\d+)ms)");
    const std::string& text = problem.messages.back().content;
    std::smatch match;
    if (!std::regex_search(text, match, *kFormat)) return "{}";
    return RecordJson(match.str(1), match.str(2), match.str(3));
  }

 private:
  uint64_t seed_;
};

}  // namespace

std::unique_ptr<Task> MakeLogJsonTask(uint64_t seed) { return std::make_unique<LogJson>(seed); }

}  // namespace millrace
