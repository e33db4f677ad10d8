// Functions of templates, and how arguments find their parameters.
#include <ctime>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/byte_level.h"
#include "model/jinja/builtins.h"
#include "model/jinja/interpreter.h"

namespace millrace::jinja {
namespace {

constexpr int64_t kMostRange = 100'000;  // as in Jinja's sandbox

absl::StatusOr<Value> RaiseException(Interpreter* in, const Arguments& args) {
  MR_ASSIGN_OR_RETURN(const auto bound, Bind("raise_exception()", args, {"message"}));
  if (bound[0] == nullptr) return absl::InvalidArgumentError("the template raises an exception");
  MR_ASSIGN_OR_RETURN(const Text text, in->ToText(*bound[0]));
  return absl::InvalidArgumentError(
      absl::StrCat("the template raises: ", text.bytes().substr(0, 1000)));
}

absl::StatusOr<Value> Range(Interpreter* in, const Arguments& args) {
  MR_ASSIGN_OR_RETURN(const auto bound, Bind("range()", args, {"start", "stop", "step"}));
  int64_t numbers[3] = {0, 0, 1};
  for (size_t i = 0; i < 3; ++i) {
    if (bound[i] == nullptr) continue;
    if (!bound[i]->is_integral()) {
      return absl::InvalidArgumentError(absl::StrCat("range() of a ", bound[i]->TypeName()));
    }
    numbers[i] = bound[i]->integer();
  }
  if (bound[0] == nullptr) return absl::InvalidArgumentError("range() without arguments");
  if (bound[1] == nullptr) std::swap(numbers[0], numbers[1]);
  const int64_t step = numbers[2];
  if (step == 0) return absl::InvalidArgumentError("range() with step 0");
  List list;
  for (int64_t i = numbers[0]; step > 0 ? i < numbers[1] : i > numbers[1];) {
    if (static_cast<int64_t>(list.items.size()) >= kMostRange) {
      return absl::ResourceExhaustedError(
          absl::StrCat("range() of more than ", kMostRange, " numbers"));
    }
    list.items.push_back(Value::Int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  MR_RETURN_IF_ERROR(in->Charge(list.items.size() * sizeof(Value)));
  return Value::Of(std::move(list));
}

// The entries of dict(...) and namespace(...): a dict, then named ones.
absl::StatusOr<Dict> DictOf(Interpreter* in, absl::string_view what, const Arguments& args) {
  Dict dict;
  if (args.positional.size() > 1 ||
      (args.positional.size() == 1 && args.positional[0].dict() == nullptr)) {
    return absl::UnimplementedError(
        absl::StrCat(what, " of something other than a dict and names is not supported"));
  }
  if (!args.positional.empty()) dict = *args.positional[0].dict();
  MR_RETURN_IF_ERROR(in->Charge((dict.size() + args.named.size()) * 64));
  for (const auto& [name, value] : args.named) dict.Set(Value::Literal(name), value);
  return dict;
}

absl::StatusOr<Value> MakeDict(Interpreter* in, const Arguments& args) {
  MR_ASSIGN_OR_RETURN(Dict dict, DictOf(in, "dict()", args));
  return Value::Of(std::move(dict));
}

absl::StatusOr<Value> MakeNamespace(Interpreter* in, const Arguments& args) {
  MR_RETURN_IF_ERROR(in->Charge(128));
  MR_ASSIGN_OR_RETURN(const Dict dict, DictOf(in, "namespace()", args));
  Value ns = in->NewNamespace();
  for (const auto& [key, value] : dict.items()) {
    if (key.text() == nullptr || absl::StartsWith(key.text()->bytes(), "_")) {
      return absl::InvalidArgumentError("a namespace has a field whose name is no plain one");
    }
    ns.ns()->fields.emplace_back(key.text()->bytes(), value);
  }
  return ns;
}

absl::StatusOr<Value> StrftimeNow(Interpreter* in, const Arguments& args) {
  MR_ASSIGN_OR_RETURN(const auto bound, Bind("strftime_now()", args, {"format"}));
  const Text* format = bound[0] == nullptr ? nullptr : bound[0]->text();
  if (format == nullptr) return absl::InvalidArgumentError("strftime_now() needs a format");
  const std::time_t seconds = absl::ToTimeT(in->now());
  std::tm parts = {};
  localtime_r(&seconds, &parts);
  char text[512];
  // A space behind, so that an empty result differs from one that does not fit.
  const size_t size = std::strftime(text, sizeof(text), (format->bytes() + " ").c_str(), &parts);
  if (size == 0) {
    return absl::InvalidArgumentError(absl::StrCat("strftime_now() with the format \"",
                                                   format->bytes().substr(0, 100),
                                                   "\" is longer than ", sizeof(text), " bytes"));
  }
  return Value::Literal(ReplaceInvalidUtf8(absl::string_view(text, size - 1)));
}

}  // namespace

Value GlobalFunction(absl::string_view name) {
  static const auto* const kFunctions = new std::vector<Value>{
      Value::Of(Callable{"raise_exception", 1, &RaiseException}),
      Value::Of(Callable{"range", 1, &Range}),
      Value::Of(Callable{"dict", 1, &MakeDict}),
      Value::Of(Callable{"namespace", 1, &MakeNamespace}),
      Value::Of(Callable{"strftime_now", 1, &StrftimeNow}),
  };
  for (const Value& function : *kFunctions) {
    if (function.callable()->name == name) return function;
  }
  return Value();
}

bool IsUnsupportedGlobal(absl::string_view name) {
  return name == "lipsum" || name == "cycler" || name == "joiner" || name == "varargs" ||
         name == "kwargs";
}

absl::StatusOr<std::vector<const Value*>> Bind(absl::string_view what, const Arguments& args,
                                               const std::vector<absl::string_view>& parameters) {
  std::vector<const Value*> bound(parameters.size(), nullptr);
  if (args.positional.size() > parameters.size()) {
    return absl::InvalidArgumentError(absl::StrCat(what, " takes at most ", parameters.size(),
                                                   " arguments, not ", args.positional.size()));
  }
  for (size_t i = 0; i < args.positional.size(); ++i) bound[i] = &args.positional[i];
  for (const auto& [name, value] : args.named) {
    size_t at = 0;
    while (at < parameters.size() && parameters[at] != name) ++at;
    if (at == parameters.size()) {
      return absl::InvalidArgumentError(absl::StrCat(what, " has no parameter \"", name, "\""));
    }
    if (bound[at] != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(what, " gets \"", name, "\" twice"));
    }
    bound[at] = &value;
  }
  return bound;
}

}  // namespace millrace::jinja
