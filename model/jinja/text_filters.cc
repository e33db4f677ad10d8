// Filters over text.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/filters.h"
#include "model/jinja/text_functions.h"

namespace millrace::jinja {
namespace {

using Result = absl::StatusOr<Value>;

// The input as text, whatever it is.
absl::StatusOr<Text> Input(FilterCall& call) {
  MR_ASSIGN_OR_RETURN(Text text, call.in->ToText(call.input));
  MR_RETURN_IF_ERROR(call.in->StepOver(text));
  MR_RETURN_IF_ERROR(call.in->Charge(text.size()));
  return text;
}

Result String(FilterCall& call) {
  if (call.input.text() != nullptr) return call.input;
  MR_ASSIGN_OR_RETURN(Text text, Input(call));
  return Value::Of(std::move(text));
}

Result Trim(FilterCall& call) {
  MR_ASSIGN_OR_RETURN(const Text text, Input(call));
  const Text* set = call.arg(0) == nullptr ? nullptr : call.arg(0)->text();
  return Value::Of(Strip(text, Side::kBoth, set));
}

Result Case(FilterCall& call) {
  MR_ASSIGN_OR_RETURN(const Text text, Input(call));
  if (call.name == "upper") return Value::Of(Upper(text));
  if (call.name == "lower") return Value::Of(Lower(text));
  return Value::Of(call.name == "title" ? TitleWords(text) : Capitalize(text));
}

Result ReplaceFilter(FilterCall& call) {
  MR_ASSIGN_OR_RETURN(const Text text, Input(call));
  if (call.arg(0) == nullptr || call.arg(1) == nullptr) {
    return absl::InvalidArgumentError("the filter \"replace\" needs two strings");
  }
  MR_ASSIGN_OR_RETURN(const Text from, call.in->ToText(*call.arg(0)));
  MR_ASSIGN_OR_RETURN(const Text to, call.in->ToText(*call.arg(1)));
  const Value* count = call.arg(2);
  const int64_t most = count != nullptr && count->is_integral() ? count->integer() : -1;
  MR_ASSIGN_OR_RETURN(Text out, Replace(call.in, text, from, to, most));
  return Value::Of(std::move(out));
}

Result JoinFilter(FilterCall& call) {
  Text separator;
  if (call.arg(0) != nullptr) {
    MR_ASSIGN_OR_RETURN(separator, call.in->ToText(*call.arg(0)));
  }
  MR_ASSIGN_OR_RETURN(std::vector<Value> items, call.in->Items(call.input));
  for (Value& item : items) {
    MR_ASSIGN_OR_RETURN(item, AttributePath(call.in, item, call.arg(1)));
  }
  MR_ASSIGN_OR_RETURN(Text out, Join(call.in, separator, items));
  return Value::Of(std::move(out));
}

Result Indent(FilterCall& call) {
  MR_ASSIGN_OR_RETURN(const Text text, Input(call));
  Text margin;
  const Value* width = call.arg(0);
  if (width != nullptr && width->text() != nullptr) {
    margin = *width->text();
  } else {
    const int64_t n = width != nullptr && width->is_integral() ? width->integer() : 4;
    const auto spaces = static_cast<size_t>(std::max<int64_t>(0, n));
    MR_RETURN_IF_ERROR(call.in->Charge(spaces));
    margin.Append(std::string(spaces, ' '), Tag());
  }
  const bool first = call.arg(1) != nullptr && call.arg(1)->truth();
  const bool blank = call.arg(2) != nullptr && call.arg(2)->truth();
  Text lines = text;
  lines.Append("\n", Tag());
  const List split = SplitLines(lines, /*keep_ends=*/false);
  Text out;
  for (size_t i = 0; i < split.items.size(); ++i) {
    const Text& line = *split.items[i].text();
    if (i > 0) out.Append("\n", Tag());
    if (i == 0 ? first : blank || !line.empty()) {
      MR_RETURN_IF_ERROR(call.in->Charge(margin.size()));
      out.Append(margin);
    }
    out.Append(line);
  }
  return Value::Of(std::move(out));
}

Result WordCount(FilterCall& call) {
  MR_ASSIGN_OR_RETURN(const Text text, Input(call));
  MR_ASSIGN_OR_RETURN(const List words, SplitText(call.in, text, nullptr, -1));
  return Value::Int(static_cast<int64_t>(words.items.size()));
}

const FilterEntry kTextFilters[] = {
    {"string", {}, &String},
    {"trim", {"chars"}, &Trim},
    {"upper", {}, &Case},
    {"lower", {}, &Case},
    {"title", {}, &Case},
    {"capitalize", {}, &Case},
    {"replace", {"old", "new", "count"}, &ReplaceFilter},
    {"join", {"d", "attribute"}, &JoinFilter},
    {"indent", {"width", "first", "blank"}, &Indent},
    {"wordcount", {}, &WordCount},
};

}  // namespace

absl::Span<const FilterEntry> TextFilters() { return kTextFilters; }

}  // namespace millrace::jinja
