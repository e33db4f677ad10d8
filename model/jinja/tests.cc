// What stands behind `is`.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/builtins.h"
#include "model/jinja/interpreter.h"
#include "utf8proc.h"

namespace millrace::jinja {
namespace {

// Whether the text has cased letters and all of them are upper (or lower) case, as Python says.
bool AllCased(const Text& text, bool upper) {
  bool any = false;
  for (size_t at = 0; at < text.size(); at += CharacterLength(text.bytes(), at)) {
    const auto category =
        utf8proc_category(static_cast<utf8proc_int32_t>(CodeAt(text.bytes(), at)));
    if (category == (upper ? UTF8PROC_CATEGORY_LL : UTF8PROC_CATEGORY_LU) ||
        category == UTF8PROC_CATEGORY_LT) {
      return false;
    }
    any = any || category == (upper ? UTF8PROC_CATEGORY_LU : UTF8PROC_CATEGORY_LL);
  }
  return any;
}

using Plain = bool (*)(const Value&);
struct PlainTest {
  absl::string_view name;
  Plain holds;
};
constexpr PlainTest kPlain[] = {
    {"defined", [](const Value& v) { return !v.is_undefined(); }},
    {"undefined", [](const Value& v) { return v.is_undefined(); }},
    {"none", [](const Value& v) { return v.is_none(); }},
    {"boolean", [](const Value& v) { return v.is_bool(); }},
    {"true", [](const Value& v) { return v.is_bool() && v.truth(); }},
    {"false", [](const Value& v) { return v.is_bool() && !v.truth(); }},
    {"integer", [](const Value& v) { return v.is_int(); }},
    {"float", [](const Value& v) { return v.is_float(); }},
    {"number", [](const Value& v) { return v.is_number(); }},
    {"string", [](const Value& v) { return v.text() != nullptr; }},
    {"mapping", [](const Value& v) { return v.dict() != nullptr; }},
    {"iterable",
     [](const Value& v) {
       return v.text() != nullptr || v.list() != nullptr || v.dict() != nullptr ||
              v.is_undefined() || v.loop() != nullptr;
     }},
    {"sequence",
     [](const Value& v) {
       return v.text() != nullptr || v.list() != nullptr || v.dict() != nullptr || v.is_undefined();
     }},
    {"callable", [](const Value& v) { return v.callable() != nullptr; }},
    {"escaped", [](const Value&) { return false; }},
    {"lower", [](const Value& v) { return v.text() != nullptr && AllCased(*v.text(), false); }},
    {"upper", [](const Value& v) { return v.text() != nullptr && AllCased(*v.text(), true); }},
};

// Tests of two values, and the operator they stand for.
constexpr std::pair<absl::string_view, absl::string_view> kComparisons[] = {
    {"eq", "=="}, {"equalto", "=="}, {"==", "=="},      {"ne", "!="},
    {"!=", "!="}, {"lt", "<"},       {"lessthan", "<"}, {"<", "<"},
    {"le", "<="}, {"<=", "<="},      {"gt", ">"},       {"greaterthan", ">"},
    {">", ">"},   {"ge", ">="},      {">=", ">="},      {"in", "in"}};

absl::StatusOr<bool> Same(const Value& a, const Value& b) {
  if (a.is_bool() || b.is_bool()) {
    return a.is_bool() && b.is_bool() && a.truth() == b.truth();
  }
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  return absl::UnimplementedError(absl::StrCat("the test \"sameas\" of ", a.TypeName(), " and ",
                                               b.TypeName(), " is not supported"));
}

absl::StatusOr<bool> Divides(const Value& value, int64_t by, int64_t rest) {
  if (!value.is_integral() || by == 0) {
    return absl::InvalidArgumentError(absl::StrCat("a ", value.TypeName(), " divided by ", by));
  }
  if (by == -1) return true;
  return ((value.integer() % by) + by) % by == rest;
}

}  // namespace

bool IsTest(absl::string_view name) {
  for (const PlainTest& test : kPlain) {
    if (test.name == name) return true;
  }
  for (const auto& [test, op] : kComparisons) {
    if (test == name) return true;
  }
  return name == "odd" || name == "even" || name == "divisibleby" || name == "sameas" ||
         name == "filter" || name == "test";
}

absl::StatusOr<bool> ApplyTest(Interpreter* in, absl::string_view name, const Value& input,
                               const Arguments& args) {
  if (input.text() != nullptr) MR_RETURN_IF_ERROR(in->StepOver(*input.text()));
  const std::string what = absl::StrCat("the test \"", name, "\"");
  for (const PlainTest& test : kPlain) {
    if (test.name != name) continue;
    MR_RETURN_IF_ERROR(Bind(what, args, {}).status());
    return test.holds(input);
  }
  if (name == "odd") return Divides(input, 2, 1);
  if (name == "even") return Divides(input, 2, 0);
  MR_ASSIGN_OR_RETURN(const auto bound, Bind(what, args, {"other"}));
  if (name == "filter" || name == "test") {
    if (input.text() == nullptr) return false;
    return name == "filter" ? IsFilter(input.text()->bytes()) : IsTest(input.text()->bytes());
  }
  if (bound[0] == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(what, " needs another value"));
  }
  if (name == "sameas") return Same(input, *bound[0]);
  if (name == "divisibleby") {
    if (!bound[0]->is_integral()) return Divides(*bound[0], 0, 0);
    return Divides(input, bound[0]->integer(), 0);
  }
  for (const auto& [test, op] : kComparisons) {
    if (test == name) return in->CompareBy(op, input, *bound[0]);
  }
  return false;
}

}  // namespace millrace::jinja
