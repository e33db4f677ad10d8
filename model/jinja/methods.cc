// Methods of strings, lists, dicts and the loop variable.
#include <algorithm>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/builtins.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/text_functions.h"
#include "model/unicode_classes.h"

namespace millrace::jinja {
namespace {

constexpr absl::string_view kTextMethods[] = {
    "strip",      "lstrip",       "rstrip",       "split",   "rsplit",  "splitlines",
    "startswith", "endswith",     "upper",        "lower",   "title",   "capitalize",
    "replace",    "find",         "rfind",        "index",   "count",   "join",
    "isdigit",    "isnumeric",    "isalpha",      "isalnum", "isspace", "isupper",
    "islower",    "removeprefix", "removesuffix", "zfill",   "ljust",   "rjust"};
constexpr absl::string_view kListMethods[] = {"index", "count"};
// What changes a list or dict is refused by the sandbox that templates are written for.
constexpr absl::string_view kListChanges[] = {"append", "extend",  "insert", "pop",
                                              "remove", "reverse", "sort",   "clear"};
constexpr absl::string_view kDictMethods[] = {"get", "items", "keys", "values", "copy"};
constexpr absl::string_view kDictChanges[] = {"pop", "popitem", "setdefault", "update", "clear"};

template <size_t n>
bool Has(const absl::string_view (&names)[n], absl::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// The text of a parameter that must be one; null when it is missing or None.
absl::StatusOr<const Text*> TextOf(const Value* value, absl::string_view what) {
  if (value == nullptr || value->is_none()) return nullptr;
  if (value->text() != nullptr) return value->text();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " gets a ", value->TypeName(), " where a string is expected"));
}

absl::StatusOr<const Text*> NeedText(const Value* value, absl::string_view what) {
  MR_ASSIGN_OR_RETURN(const Text* text, TextOf(value, what));
  if (text == nullptr) return absl::InvalidArgumentError(absl::StrCat(what, " needs a string"));
  return text;
}

absl::StatusOr<int64_t> IntegerOf(const Value* value, int64_t otherwise, absl::string_view what) {
  if (value == nullptr || value->is_none()) return otherwise;
  if (value->is_integral()) return value->integer();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " gets a ", value->TypeName(), " where a number is expected"));
}

Value Of(Text text) { return Value::Of(std::move(text)); }

absl::StatusOr<Value> StripMethod(const Text& text, absl::string_view name, const Arguments& args) {
  const Side side = name == "lstrip" ? Side::kLeft : name == "rstrip" ? Side::kRight : Side::kBoth;
  MR_ASSIGN_OR_RETURN(const auto bound, Bind(name, args, {"chars"}));
  MR_ASSIGN_OR_RETURN(const Text* set, TextOf(bound[0], name));
  return Of(Strip(text, side, set));
}

absl::StatusOr<Value> SplitMethod(Interpreter* in, const Text& text, absl::string_view name,
                                  const Arguments& args) {
  MR_ASSIGN_OR_RETURN(const auto bound, Bind(name, args, {"sep", "maxsplit"}));
  MR_ASSIGN_OR_RETURN(const Text* separator, TextOf(bound[0], name));
  MR_ASSIGN_OR_RETURN(const int64_t most, IntegerOf(bound[1], -1, name));
  MR_ASSIGN_OR_RETURN(List list, name == "split" ? SplitText(in, text, separator, most)
                                                 : SplitTextFromRight(in, text, separator, most));
  return Value::Of(std::move(list));
}

// startswith and endswith: of a string, or of any of a tuple.
absl::StatusOr<Value> Affix(const Text& text, absl::string_view name, const Arguments& args) {
  MR_ASSIGN_OR_RETURN(const auto bound, Bind(name, args, {"prefix"}));
  const auto fits = [&](const Text& affix) {
    return name == "startswith" ? absl::StartsWith(text.bytes(), affix.bytes())
                                : absl::EndsWith(text.bytes(), affix.bytes());
  };
  if (bound[0] != nullptr && bound[0]->list() != nullptr) {
    bool any = false;
    for (const Value& item : bound[0]->list()->items) {
      MR_ASSIGN_OR_RETURN(const Text* affix, NeedText(&item, name));
      any = any || fits(*affix);
    }
    return Value::Bool(any);
  }
  MR_ASSIGN_OR_RETURN(const Text* affix, NeedText(bound[0], name));
  return Value::Bool(fits(*affix));
}

absl::StatusOr<Value> Search(const Text& text, absl::string_view name, const Arguments& args) {
  MR_ASSIGN_OR_RETURN(const auto bound, Bind(name, args, {"sub"}));
  MR_ASSIGN_OR_RETURN(const Text* sub, NeedText(bound[0], name));
  const std::string &bytes = text.bytes(), &wanted = sub->bytes();
  if (name == "count") {
    if (wanted.empty()) return Value::Int(static_cast<int64_t>(CharacterCount(bytes)) + 1);
    int64_t n = 0;
    for (size_t at = 0; (at = bytes.find(wanted, at)) != std::string::npos; at += wanted.size())
      ++n;
    return Value::Int(n);
  }
  const size_t at = name == "rfind" ? bytes.rfind(wanted) : bytes.find(wanted);
  if (at != std::string::npos) {
    return Value::Int(static_cast<int64_t>(CharacterCount(absl::string_view(bytes).substr(0, at))));
  }
  if (name == "index") return absl::InvalidArgumentError("index() of a string that is not there");
  return Value::Int(-1);
}

bool IsKind(const Text& text, absl::string_view name) {
  const CharClasses& classes = CharClasses::Get();
  for (size_t at = 0; at < text.size(); at += CharacterLength(text.bytes(), at)) {
    const uint32_t code = CodeAt(text.bytes(), at);
    const CharClass c = classes.Of(code);
    bool good = false;
    if (name == "isspace") good = IsPythonSpace(code);
    if (name == "isdigit" || name == "isnumeric") good = c == CharClass::kNumber;
    if (name == "isalpha") good = c == CharClass::kLetter;
    if (name == "isalnum") good = c == CharClass::kLetter || c == CharClass::kNumber;
    if (!good) return false;
  }
  return !text.empty();
}

absl::StatusOr<Value> Pad(Interpreter* in, const Text& text, absl::string_view name,
                          const Arguments& args) {
  MR_ASSIGN_OR_RETURN(const auto bound, Bind(name, args, {"width", "fillchar"}));
  MR_ASSIGN_OR_RETURN(const int64_t width, IntegerOf(bound[0], 0, name));
  MR_ASSIGN_OR_RETURN(const Text* given, TextOf(bound[1], name));
  const auto length = static_cast<int64_t>(CharacterCount(text.bytes()));
  const Text fill = given != nullptr ? *given : Text(name == "zfill" ? "0" : " ", kTemplateOrigin);
  if (CharacterCount(fill.bytes()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(name, " with a fill of several characters"));
  }
  const bool sign =
      name == "zfill" && !text.empty() && (text.bytes()[0] == '-' || text.bytes()[0] == '+');
  Text padding;
  if (width > length) {
    MR_RETURN_IF_ERROR(in->Charge(static_cast<size_t>(width) * fill.size()));
    for (int64_t i = length; i < width; ++i) padding.Append(fill);
  }
  Text out;
  if (name == "ljust") {
    out = text;
    out.Append(padding);
    return Of(std::move(out));
  }
  if (sign) out = text.Sub(0, 1);
  out.Append(padding);
  out.Append(text.Sub(sign ? 1 : 0, text.size()));
  return Of(std::move(out));
}

absl::StatusOr<Value> ReplaceMethod(Interpreter* in, const Text& text, const Arguments& args) {
  MR_ASSIGN_OR_RETURN(const auto bound, Bind("replace", args, {"old", "new", "count"}));
  MR_ASSIGN_OR_RETURN(const Text* from, NeedText(bound[0], "replace"));
  MR_ASSIGN_OR_RETURN(const Text* to, NeedText(bound[1], "replace"));
  MR_ASSIGN_OR_RETURN(const int64_t most, IntegerOf(bound[2], -1, "replace"));
  MR_ASSIGN_OR_RETURN(Text out, Replace(in, text, *from, *to, most));
  return Of(std::move(out));
}

absl::StatusOr<Value> RemoveAffix(const Text& text, absl::string_view name, const Arguments& args) {
  MR_ASSIGN_OR_RETURN(const auto bound, Bind(name, args, {"affix"}));
  MR_ASSIGN_OR_RETURN(const Text* affix, NeedText(bound[0], name));
  if (name == "removeprefix" && absl::StartsWith(text.bytes(), affix->bytes())) {
    return Of(text.Sub(affix->size(), text.size()));
  }
  if (name == "removesuffix" && absl::EndsWith(text.bytes(), affix->bytes())) {
    return Of(text.Sub(0, text.size() - affix->size()));
  }
  return Of(text);
}

absl::StatusOr<Value> TextMethod(Interpreter* in, const Text& text, absl::string_view name,
                                 const Arguments& args) {
  if (absl::EndsWith(name, "strip")) return StripMethod(text, name, args);
  if (name == "split" || name == "rsplit") return SplitMethod(in, text, name, args);
  if (name == "startswith" || name == "endswith") return Affix(text, name, args);
  if (name == "find" || name == "rfind" || name == "index" || name == "count") {
    return Search(text, name, args);
  }
  if (name == "replace") return ReplaceMethod(in, text, args);
  if (absl::StartsWith(name, "remove")) return RemoveAffix(text, name, args);
  if (name == "zfill" || name == "ljust" || name == "rjust") return Pad(in, text, name, args);
  if (name == "splitlines") {
    MR_ASSIGN_OR_RETURN(const auto bound, Bind(name, args, {"keepends"}));
    MR_RETURN_IF_ERROR(in->Charge(text.size() * 64));
    return Value::Of(SplitLines(text, bound[0] != nullptr && bound[0]->truth()));
  }
  if (name == "join") {
    MR_ASSIGN_OR_RETURN(const auto bound, Bind(name, args, {"items"}));
    MR_ASSIGN_OR_RETURN(const auto items, in->Items(bound[0] == nullptr ? Value() : *bound[0]));
    for (const Value& item : items) MR_RETURN_IF_ERROR(NeedText(&item, name).status());
    MR_ASSIGN_OR_RETURN(Text out, Join(in, text, items));
    return Of(std::move(out));
  }
  MR_RETURN_IF_ERROR(Bind(name, args, {}).status());
  if (name == "isupper" || name == "islower") {
    MR_ASSIGN_OR_RETURN(const bool holds, ApplyTest(in, name.substr(2), Of(text), {}));
    return Value::Bool(holds);
  }
  if (absl::StartsWith(name, "is")) return Value::Bool(IsKind(text, name));
  if (name == "upper") return Of(Upper(text));
  if (name == "lower") return Of(Lower(text));
  return Of(name == "title" ? Title(text) : Capitalize(text));
}

absl::StatusOr<Value> ListMethod(Interpreter* in, const List& list, absl::string_view name,
                                 const Arguments& args) {
  MR_ASSIGN_OR_RETURN(const auto bound, Bind(name, args, {"value"}));
  if (bound[0] == nullptr) return absl::InvalidArgumentError(absl::StrCat(name, " needs a value"));
  int64_t n = 0;
  for (size_t i = 0; i < list.items.size(); ++i) {
    MR_RETURN_IF_ERROR(in->Step());
    if (!Equal(list.items[i], *bound[0], in->steps_left())) continue;
    if (name == "index") return Value::Int(static_cast<int64_t>(i));
    ++n;
  }
  if (name == "index") return absl::InvalidArgumentError("index() of a value that is not there");
  return Value::Int(n);
}

absl::StatusOr<Value> DictMethod(Interpreter* in, const Value& object, absl::string_view name,
                                 const Arguments& args) {
  const Dict& dict = *object.dict();
  if (name == "get") {
    MR_ASSIGN_OR_RETURN(const auto bound, Bind(name, args, {"key", "default"}));
    if (bound[0] == nullptr) return absl::InvalidArgumentError("get() needs a key");
    if (bound[0]->text() != nullptr) MR_RETURN_IF_ERROR(in->StepOver(*bound[0]->text()));
    if (const Value* value = dict.Find(*bound[0])) return *value;
    return bound[1] == nullptr ? Value::MakeNone() : *bound[1];
  }
  MR_RETURN_IF_ERROR(Bind(name, args, {}).status());
  if (name == "copy") return object;
  MR_RETURN_IF_ERROR(in->Charge(dict.size() * (sizeof(Value) + sizeof(List))));
  List list;
  list.origin = dict.origin();
  for (const auto& [key, value] : dict.items()) {
    if (name == "items") {
      List pair;
      pair.tuple = true;
      pair.origin = dict.origin();
      pair.items = {key, value};
      list.items.push_back(Value::Of(std::move(pair)));
    } else {
      list.items.push_back(name == "keys" ? key : value);
    }
  }
  return Value::Of(std::move(list));
}

absl::StatusOr<Value> LoopMethod(Interpreter* in, Loop* loop, absl::string_view name,
                                 const Arguments& args) {
  if (name == "cycle") {
    if (args.positional.empty()) return absl::InvalidArgumentError("loop.cycle() of nothing");
    return args.positional[loop->index0 % args.positional.size()];
  }
  const bool same =
      loop->last_changed != nullptr && loop->last_changed->size() == args.positional.size() &&
      std::equal(args.positional.begin(), args.positional.end(), loop->last_changed->begin(),
                 [in](const Value& a, const Value& b) { return Equal(a, b, in->steps_left()); });
  for (const Value& value : args.positional) {
    if (value.depth() > 0 || value.loop() != nullptr) {
      return absl::UnimplementedError("loop.changed() of lists and dicts is not supported");
    }
  }
  loop->last_changed = std::make_shared<std::vector<Value>>(args.positional);
  return Value::Bool(!same);
}

}  // namespace

bool HasMethod(const Value& object, absl::string_view name) {
  if (object.text() != nullptr) return Has(kTextMethods, name);
  if (object.list() != nullptr) return Has(kListMethods, name) || Has(kListChanges, name);
  if (object.dict() != nullptr) return Has(kDictMethods, name) || Has(kDictChanges, name);
  return object.loop() != nullptr && (name == "cycle" || name == "changed");
}

absl::StatusOr<Value> CallMethod(Interpreter* in, const Value& object, absl::string_view name,
                                 const Arguments& args) {
  if (const Text* text = object.text()) {
    MR_RETURN_IF_ERROR(in->StepOver(*text));
    const bool looks_only = absl::EndsWith(name, "with") || name == "count" ||
                            absl::EndsWith(name, "find") || absl::StartsWith(name, "is");
    if (!looks_only) MR_RETURN_IF_ERROR(in->Charge(text->size()));
    return TextMethod(in, *text, name, args);
  }
  if ((object.list() != nullptr && Has(kListChanges, name)) ||
      (object.dict() != nullptr && Has(kDictChanges, name))) {
    return absl::UnimplementedError(absl::StrCat("the method \"", name, "\", which changes a ",
                                                 object.TypeName(), ", is not supported"));
  }
  if (object.list() != nullptr) return ListMethod(in, *object.list(), name, args);
  if (object.dict() != nullptr) return DictMethod(in, object, name, args);
  return LoopMethod(in, object.loop(), name, args);
}

}  // namespace millrace::jinja
