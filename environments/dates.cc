#include "environments/dates.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "environments/few_shot_task.h"

namespace millrace {
namespace {

constexpr const char* kMonths[] = {"January",   "February", "March",    "April",
                                   "May",       "June",     "July",     "August",
                                   "September", "October",  "November", "December"};
constexpr int64_t kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
constexpr int64_t kFirstYear = 1950, kLastYear = 2049;  // a year divisible by 4 is a leap year

bool HasDateForm(absl::string_view text) {
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return false;
  for (const size_t i : {0, 1, 2, 3, 5, 6, 8, 9}) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(text[i]))) return false;
  }
  return true;
}

class Dates : public FewShotTask {
 public:
  using FewShotTask::FewShotTask;

 protected:
  Shot Draw(ProblemRandom* random) const override {
    const int64_t year = random->Between(kFirstYear, kLastYear);
    const int64_t month = random->Between(1, 12);
    const int64_t leap_day = month == 2 && year % 4 == 0 ? 1 : 0;
    const int64_t day = random->Between(1, kDays[month - 1] + leap_day);
    return {absl::StrCat(kMonths[month - 1], " ", day, ", ", year),
            absl::StrFormat("%04d-%02d-%02d", year, month, day)};
  }

  AnswerMatch Match(const std::string& reference, absl::string_view completion) const override {
    const absl::string_view date = absl::StripAsciiWhitespace(completion);
    AnswerMatch match;
    match.correct = date == reference;
    match.format = HasDateForm(date);
    if (!match.format) return match;
    const int right = (date.substr(0, 4) == reference.substr(0, 4) ? 1 : 0) +
                      (date.substr(5, 2) == reference.substr(5, 2) ? 1 : 0) +
                      (date.substr(8, 2) == reference.substr(8, 2) ? 1 : 0);
    match.fields = right / 3.0;
    return match;
  }
};

}  // namespace

std::unique_ptr<Task> MakeDatesTask(uint64_t seed, bool partial_credit) {
  FewShotTask::Options options;
  options.name = "dates";
  options.shots = {{"May 7, 2013", "2013-05-07"}, {"October 21, 1998", "1998-10-21"}};
  options.seed = seed;
  options.partial_credit = partial_credit;
  return std::make_unique<Dates>(std::move(options));
}

}  // namespace millrace
