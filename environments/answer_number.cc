#include "environments/answer_number.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "environments/pattern.h"

namespace millrace {
namespace {

constexpr size_t kMostDigits = 400;

// A number in running text; U+2212 is the minus sign of typesetters.
#define MILLRACE_NUMBER                                                                       \
  "(?:[-+\\x{2212}]?\\$?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\\.[0-9]+)?|[-+\\x{2212}]?\\$?" \
  "\\.[0-9]+)"

struct Patterns {
  std::unique_ptr<Pattern> hash = Make("####[ \\t]*([^\\n]*)");
  std::unique_ptr<Pattern> leading = Make("\\s*(" MILLRACE_NUMBER "(?:\\s*/\\s*[0-9]+)?)");
  std::unique_ptr<Pattern> phrase = Make(
      "(?i:answer\\s*(?:is|:|=))\\s*[:=]?\\s*\\**\\s*(" MILLRACE_NUMBER "(?:\\s*/\\s*[0-9]+)?)");
  std::unique_ptr<Pattern> number = Make(MILLRACE_NUMBER);
  std::unique_ptr<Pattern> text_command = Make("\\\\(?:text|mathrm|textbf|mathbf)\\{[^{}]*\\}");
  std::unique_ptr<Pattern> layout = Make("\\\\(?:left|right|displaystyle)");
  std::unique_ptr<Pattern> variable = Make("^[A-Za-z]\\s*=\\s*");
  std::unique_ptr<Pattern> latex_fraction =
      Make("([-+]?)\\\\[dt]?frac\\{\\s*([0-9]+)\\s*\\}\\{\\s*([0-9]+)\\s*\\}");
  std::unique_ptr<Pattern> fraction = Make("([-+]?)([0-9]+)\\s*/\\s*([0-9]+)");
  std::unique_ptr<Pattern> decimal =
      Make("([-+]?)((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?)(?:\\.([0-9]+))?");
  std::unique_ptr<Pattern> with_unit =
      Make("([-+]?)([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\\.([0-9]+))?(?:\\s+[A-Za-z].*)?");

  static std::unique_ptr<Pattern> Make(const char* expression) {
    return std::move(*Pattern::Compile(expression));  // constants: they compile
  }
};
#undef MILLRACE_NUMBER

const Patterns& P() {
  static const Patterns* const patterns = new Patterns;
  return *patterns;
}

std::string Digits(absl::string_view text) {
  std::string digits = absl::StrReplaceAll(text, {{",", ""}});
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  return digits.empty() ? "0" : digits;
}

std::optional<ExactNumber> MakeNumber(absl::string_view sign, absl::string_view numerator,
                                      absl::string_view denominator) {
  ExactNumber number{sign == "-", Digits(numerator), Digits(denominator)};
  if (number.denominator == "0" || number.numerator.size() > kMostDigits ||
      number.denominator.size() > kMostDigits) {
    return std::nullopt;
  }
  return number;
}

// groups: sign, whole part, fraction digits.
std::optional<ExactNumber> FromDecimal(const Pattern::Match& match) {
  const absl::string_view whole = match.groups[2], part = match.groups[3];
  if (whole.empty() && part.empty()) return std::nullopt;
  return MakeNumber(match.groups[1], absl::StrCat(whole, part),
                    absl::StrCat("1", std::string(part.size(), '0')));
}

std::string Product(const std::string& a, const std::string& b) {
  std::vector<int> sum(a.size() + b.size(), 0);  // least digit first
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) {
      sum[i + j] += (a[a.size() - 1 - i] - '0') * (b[b.size() - 1 - j] - '0');
    }
  }
  std::string text;
  int carry = 0;
  for (const int digit : sum) {
    carry += digit;
    text += static_cast<char>('0' + carry % 10);
    carry /= 10;
  }
  std::reverse(text.begin(), text.end());
  return Digits(text);
}

// The content of the last \boxed{...}; false when there is none with balanced braces.
bool LastBoxed(absl::string_view text, std::string* content) {
  constexpr absl::string_view kOpen = "\\boxed{";
  const size_t open = text.rfind(kOpen);
  if (open == absl::string_view::npos) return false;
  const size_t begin = open + kOpen.size();
  int depth = 1;
  for (size_t i = begin; i < text.size(); ++i) {
    depth += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
    if (depth == 0) {
      *content = std::string(text.substr(begin, i - begin));
      return true;
    }
  }
  return false;
}

}  // namespace

bool operator==(const ExactNumber& a, const ExactNumber& b) {
  const bool zero = a.numerator == "0" && b.numerator == "0";
  if (!zero && a.negative != b.negative) return false;
  return Product(a.numerator, b.denominator) == Product(b.numerator, a.denominator);
}

AnswerText FindAnswerText(absl::string_view completion) {
  Pattern::Match match, number;
  if (P().hash->FindLast(completion, &match)) {
    const absl::string_view rest = match.groups[1];
    if (P().leading->Find(rest, 0, &number) && number.begin == 0) {
      return {"hash", std::string(number.groups[1])};
    }
    return {"hash", std::string(absl::StripAsciiWhitespace(rest))};
  }
  std::string boxed;
  if (LastBoxed(completion, &boxed)) return {"boxed", boxed};
  if (P().phrase->FindLast(completion, &match)) return {"phrase", std::string(match.groups[1])};
  if (P().number->FindLast(completion, &match)) return {"number", std::string(match.groups[0])};
  return {};
}

std::optional<ExactNumber> ParseNumber(absl::string_view text) {
  std::string t = absl::StrReplaceAll(text, {{"\u2212", "-"},
                                             {"\\!", ""},
                                             {"\\,", ""},
                                             {"\\ ", " "},
                                             {"\\$", ""},
                                             {"\\%", "%"},
                                             {"$", ""},
                                             {"{,}", ","}});
  t = P().layout->Replace(P().text_command->Replace(t, ""), "");
  t = P().variable->Replace(absl::StripAsciiWhitespace(t), "");
  absl::string_view rest = t;
  while (absl::ConsumeSuffix(&rest, ".")) {
  }
  rest = absl::StripAsciiWhitespace(rest);
  while (absl::ConsumeSuffix(&rest, "%")) {
  }
  rest = absl::StripAsciiWhitespace(rest);
  Pattern::Match match;
  for (const Pattern* fraction : {P().latex_fraction.get(), P().fraction.get()}) {
    if (fraction->MatchesAll(rest, &match)) {
      return MakeNumber(match.groups[1], match.groups[2], match.groups[3]);
    }
  }
  if (P().decimal->MatchesAll(rest, &match) || P().with_unit->MatchesAll(rest, &match)) {
    return FromDecimal(match);
  }
  return std::nullopt;
}

std::optional<ExactNumber> AnswerNumber(absl::string_view completion) {
  return ParseNumber(FindAnswerText(completion).text);
}

}  // namespace millrace
