// Filters over any values, and the table of all filters.
#include "model/jinja/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "model/jinja/text_functions.h"

namespace millrace::jinja {
namespace {

using Result = absl::StatusOr<Value>;

absl::Status WrongType(absl::string_view filter, const Value& value) {
  return absl::InvalidArgumentError(
      value.is_undefined() ? value.UndefinedMessage()
                           : absl::StrCat("the filter \"", filter, "\" of a ", value.TypeName()));
}

bool IsTrue(const Value* value) { return value != nullptr && value->truth(); }

Result Length(FilterCall& call) {
  const Value& v = call.input;
  if (v.text() != nullptr) {
    MR_RETURN_IF_ERROR(call.in->StepOver(*v.text()));
    return Value::Int(static_cast<int64_t>(CharacterCount(v.text()->bytes())));
  }
  if (v.list() != nullptr) return Value::Int(static_cast<int64_t>(v.list()->items.size()));
  if (v.dict() != nullptr) return Value::Int(static_cast<int64_t>(v.dict()->size()));
  if (v.is_undefined()) return Value::Int(0);
  return WrongType(call.name, v);
}

Result Default(FilterCall& call) {
  const bool missing = call.input.is_undefined() || (IsTrue(call.arg(1)) && !call.input.truth());
  if (!missing) return call.input;
  return call.arg(0) == nullptr ? Value::Literal("") : *call.arg(0);
}

Result First(FilterCall& call) {
  MR_ASSIGN_OR_RETURN(const auto items, call.in->Items(call.input));
  if (items.empty()) return Value::UndefinedNamed("the first item of nothing is undefined");
  return call.name == "first" ? items.front() : items.back();
}

Result ToList(FilterCall& call) {
  List list;
  MR_ASSIGN_OR_RETURN(list.items, call.in->Items(call.input));
  if (call.input.list() != nullptr) list.origin = call.input.list()->origin;
  return Value::Of(std::move(list));
}

Result DictItems(FilterCall& call) {
  if (call.input.is_undefined()) return Value::Of(List());
  if (call.input.dict() == nullptr) return WrongType(call.name, call.input);
  return CallMethod(call.in, call.input, "items", {});
}

Result Reverse(FilterCall& call) {
  if (const Text* text = call.input.text()) {
    MR_ASSIGN_OR_RETURN(const auto items, call.in->Items(call.input));
    Text out;
    for (size_t i = items.size(); i > 0; --i) out.Append(*items[i - 1].text());
    static_cast<void>(text);
    return Value::Of(std::move(out));
  }
  MR_ASSIGN_OR_RETURN(const Value list, ToList(call));
  List reversed = *list.list();
  std::reverse(reversed.items.begin(), reversed.items.end());
  return Value::Of(std::move(reversed));
}

Result ToInt(FilterCall& call) {
  const Value otherwise = call.arg(0) == nullptr ? Value::Int(0) : *call.arg(0);
  const Value& v = call.input;
  if (v.is_integral()) return Value::Int(v.integer());
  double number = 0;
  if (v.is_float()) {
    number = v.number();
  } else if (v.text() != nullptr) {
    const absl::string_view text = absl::StripAsciiWhitespace(v.text()->bytes());
    int64_t integer = 0;
    if (absl::SimpleAtoi(text, &integer)) return Value::Int(integer);
    if (!absl::SimpleAtod(text, &number)) return otherwise;
  } else {
    return otherwise;
  }
  if (!(std::abs(number) < 9e18)) return otherwise;
  return Value::Int(static_cast<int64_t>(number));
}

Result ToFloat(FilterCall& call) {
  const Value& v = call.input;
  if (v.is_number()) return Value::Float(v.number());
  double number = 0;
  if (v.text() != nullptr &&
      absl::SimpleAtod(absl::StripAsciiWhitespace(v.text()->bytes()), &number)) {
    return Value::Float(number);
  }
  return call.arg(0) == nullptr ? Value::Float(0) : *call.arg(0);
}

Result Round(FilterCall& call) {
  if (!call.input.is_number()) return WrongType(call.name, call.input);
  const int64_t digits =
      call.arg(0) != nullptr && call.arg(0)->is_integral() ? call.arg(0)->integer() : 0;
  const std::string method = call.arg(1) != nullptr && call.arg(1)->text() != nullptr
                                 ? call.arg(1)->text()->bytes()
                                 : "common";
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double scaled = call.input.number() * scale;
  if (method == "ceil") return Value::Float(std::ceil(scaled) / scale);
  if (method == "floor") return Value::Float(std::floor(scaled) / scale);
  if (method != "common") return WrongType("round", Value::Literal(method));
  // Python's round(): the decimal nearest to the number, ties to even.
  return Value::Float(digits == 0 ? std::nearbyint(scaled) : std::nearbyint(scaled) / scale);
}

Result Abs(FilterCall& call) {
  const Value& v = call.input;
  if (v.is_float()) return Value::Float(std::abs(v.number()));
  if (!v.is_integral() || v.integer() == INT64_MIN) return WrongType(call.name, v);
  return Value::Int(std::abs(v.integer()));
}

Result Sum(FilterCall& call) {
  MR_ASSIGN_OR_RETURN(const auto items, call.in->Items(call.input));
  Value total = call.arg(1) == nullptr ? Value::Int(0) : *call.arg(1);
  for (const Value& item : items) {
    MR_RETURN_IF_ERROR(call.in->Step());
    MR_ASSIGN_OR_RETURN(const Value value, AttributePath(call.in, item, call.arg(0)));
    MR_ASSIGN_OR_RETURN(total, call.in->Binary("+", total, value));
  }
  return total;
}

absl::StatusOr<JsonOptions> ReadJsonOptions(FilterCall& call) {
  JsonOptions options;
  options.most = call.in->most_bytes();
  if (const Value* indent = call.arg(0); indent != nullptr && !indent->is_none()) {
    options.pretty = true;
    options.item_separator = ",";
    if (indent->is_integral() && indent->integer() <= 64) {
      options.indent.assign(static_cast<size_t>(std::max<int64_t>(0, indent->integer())), ' ');
    } else if (indent->text() != nullptr && indent->text()->size() <= 64) {
      options.indent = indent->text()->bytes();
    } else {
      return WrongType("tojson(indent=...)", *indent);
    }
  }
  options.ensure_ascii = IsTrue(call.arg(1));
  options.sort_keys = IsTrue(call.arg(3));
  const Value* separators = call.arg(2);
  if (separators == nullptr || separators->is_none()) return options;
  const List* pair = separators->list();
  if (pair == nullptr || pair->items.size() != 2 || pair->items[0].text() == nullptr ||
      pair->items[1].text() == nullptr) {
    return WrongType("tojson(separators=...)", *separators);
  }
  options.item_separator = pair->items[0].text()->bytes();
  options.key_separator = pair->items[1].text()->bytes();
  return options;
}

Result ToJsonFilter(FilterCall& call) {
  MR_ASSIGN_OR_RETURN(const JsonOptions options, ReadJsonOptions(call));
  MR_ASSIGN_OR_RETURN(Text text, ToJson(call.input, options));
  MR_RETURN_IF_ERROR(call.in->Charge(text.size()));
  return Value::Of(std::move(text));
}

Result AttributeFilter(FilterCall& call) {
  if (call.arg(0) == nullptr || call.arg(0)->text() == nullptr) {
    return WrongType(call.name, Value());
  }
  return call.in->Attribute(call.input, call.arg(0)->text()->bytes());
}

Result Itself(FilterCall& call) { return call.input; }

const FilterEntry kValueFilters[] = {
    {"length", {}, &Length},
    {"count", {}, &Length},
    {"default", {"default_value", "boolean"}, &Default},
    {"d", {"default_value", "boolean"}, &Default},
    {"first", {}, &First},
    {"last", {}, &First},
    {"list", {}, &ToList},
    {"items", {}, &DictItems},
    {"reverse", {}, &Reverse},
    {"int", {"default"}, &ToInt},
    {"float", {"default"}, &ToFloat},
    {"round", {"precision", "method"}, &Round},
    {"abs", {}, &Abs},
    {"sum", {"attribute", "start"}, &Sum},
    {"tojson", {"indent", "ensure_ascii", "separators", "sort_keys"}, &ToJsonFilter},
    {"attr", {"name"}, &AttributeFilter},
    // Templates are rendered without escaping, so there is nothing to be safe from.
    {"safe", {}, &Itself},
};

const FilterEntry* FindFilter(absl::string_view name) {
  for (const auto& table : {absl::MakeConstSpan(kValueFilters), TextFilters(), SequenceFilters()}) {
    for (const FilterEntry& entry : table) {
      if (entry.name == name) return &entry;
    }
  }
  return nullptr;
}

}  // namespace

Result AttributePath(Interpreter* in, const Value& object, const Value* path,
                     const Value* otherwise) {
  if (path == nullptr || path->is_none()) return object;
  if (path->is_integral()) return in->Item(object, *path);
  if (path->text() == nullptr) return WrongType("an attribute's name", *path);
  Value value = object;
  for (absl::string_view part : absl::StrSplit(path->text()->bytes(), '.')) {
    MR_RETURN_IF_ERROR(in->Step());
    int64_t index = 0;
    const Value key = absl::SimpleAtoi(part, &index) ? Value::Int(index) : Value::Literal(part);
    MR_ASSIGN_OR_RETURN(value, in->Item(value, key));
    if (value.is_undefined() && otherwise != nullptr) value = *otherwise;
  }
  return value;
}

bool IsFilter(absl::string_view name) { return FindFilter(name) != nullptr; }

absl::StatusOr<Value> ApplyFilter(Interpreter* in, absl::string_view name, const Value& input,
                                  const Arguments& args) {
  const FilterEntry* entry = FindFilter(name);
  if (entry == nullptr) {
    return absl::UnimplementedError(absl::StrCat("the filter \"", name, "\" is not supported"));
  }
  FilterCall call{in, name, input, args, {}};
  if (!entry->any_arguments) {
    MR_ASSIGN_OR_RETURN(call.bound,
                        Bind(absl::StrCat("the filter \"", name, "\""), args, entry->parameters));
  }
  return entry->apply(call);
}

}  // namespace millrace::jinja
