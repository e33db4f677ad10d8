#include "environments/verifier.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "environments/answer_number.h"
#include "environments/json_answer.h"
#include "environments/pattern.h"

namespace millrace {
namespace {

class Exact : public Verifier {
 public:
  absl::StatusOr<std::string> Reference(absl::string_view answer) const override {
    return std::string(absl::StripAsciiWhitespace(answer));
  }
  bool IsRight(const std::string& reference, absl::string_view completion) const override {
    return absl::StripAsciiWhitespace(completion) == reference;
  }
};

class Numeric : public Verifier {
 public:
  absl::StatusOr<std::string> Reference(absl::string_view answer) const override {
    const AnswerText found = FindAnswerText(answer);
    if (!ParseNumber(found.text).has_value()) {
      return absl::InvalidArgumentError("the answer has no number to compare with");
    }
    return found.text;
  }
  bool IsRight(const std::string& reference, absl::string_view completion) const override {
    const std::optional<ExactNumber> wanted = ParseNumber(reference);
    const std::optional<ExactNumber> got = AnswerNumber(completion);
    return wanted.has_value() && got.has_value() && *wanted == *got;
  }
};

class JsonVerifier : public Verifier {
 public:
  absl::StatusOr<std::string> Reference(absl::string_view answer) const override {
    if (ParseJsonAnswer(answer).is_discarded()) {
      return absl::InvalidArgumentError("the answer is not one JSON value with distinct keys");
    }
    return std::string(absl::StripAsciiWhitespace(answer));
  }
  bool IsRight(const std::string& reference, absl::string_view completion) const override {
    const nlohmann::json got = ParseJsonAnswer(completion);
    return !got.is_discarded() && SameJson(got, ParseJsonAnswer(reference));
  }
};

class Regex : public Exact {
 public:
  explicit Regex(std::unique_ptr<Pattern> pattern) : pattern_(std::move(pattern)) {}
  bool IsRight(const std::string& reference, absl::string_view completion) const override {
    Pattern::Match match;
    return pattern_->FindLast(completion, &match) &&
           absl::StripAsciiWhitespace(match.groups[1]) == reference;
  }

 private:
  const std::unique_ptr<Pattern> pattern_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Verifier>> MakeVerifier(const std::string& name,
                                                       const std::string& pattern) {
  if (name == "regex") {
    MR_ASSIGN_OR_RETURN(std::unique_ptr<Pattern> compiled, Pattern::Compile(pattern));
    if (compiled->groups() < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.pattern \"", pattern, "\" has no (group) for the answer"));
    }
    return std::unique_ptr<Verifier>(new Regex(std::move(compiled)));
  }
  if (!pattern.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.pattern is for the verifier regex, not for ", name));
  }
  if (name == "exact") return std::unique_ptr<Verifier>(new Exact);
  if (name == "numeric") return std::unique_ptr<Verifier>(new Numeric);
  if (name == "json") return std::unique_ptr<Verifier>(new JsonVerifier);
  return absl::InvalidArgumentError(
      absl::StrCat("no verifier \"", name, "\"; there are: exact, numeric, json, regex"));
}

}  // namespace millrace
