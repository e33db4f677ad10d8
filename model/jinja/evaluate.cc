// The expressions of templates.
#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/interpreter.h"

namespace millrace::jinja {
namespace {

constexpr int kMostValueNesting = 200;

absl::Status Undefined(const Value& value) {
  return absl::InvalidArgumentError(value.UndefinedMessage());
}

absl::Status BadOperands(absl::string_view op, const Value& a, const Value& b) {
  return absl::InvalidArgumentError(
      absl::StrCat("no operation ", op, " between ", a.TypeName(), " and ", b.TypeName()));
}

absl::Status Overflow(absl::string_view op) {
  return absl::InvalidArgumentError(absl::StrCat("the result of ", op, " is out of range"));
}

absl::StatusOr<Value> Integers(absl::string_view op, int64_t a, int64_t b) {
  int64_t out = 0;
  if (op == "+" && !__builtin_add_overflow(a, b, &out)) return Value::Int(out);
  if (op == "-" && !__builtin_sub_overflow(a, b, &out)) return Value::Int(out);
  if (op == "*" && !__builtin_mul_overflow(a, b, &out)) return Value::Int(out);
  if (op == "+" || op == "-" || op == "*") return Overflow(op);
  if (op == "**") {
    if (b < 0) return Value::Float(std::pow(static_cast<double>(a), static_cast<double>(b)));
    int64_t power = 1;
    for (int64_t i = 0; i < b; ++i) {
      if (__builtin_mul_overflow(power, a, &power) || i > 64 * 1024) return Overflow(op);
    }
    return Value::Int(power);
  }
  if (b == 0) return absl::InvalidArgumentError("division by zero");
  if (op == "/") return Value::Float(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) return op == "%" ? Value::Int(0) : Integers("-", 0, a);
  const int64_t rest = a % b, quotient = a / b;
  const bool down = rest != 0 && (rest < 0) != (b < 0);
  return Value::Int(op == "%" ? (down ? rest + b : rest) : (down ? quotient - 1 : quotient));
}

absl::StatusOr<Value> Floats(absl::string_view op, double a, double b) {
  if (op == "+") return Value::Float(a + b);
  if (op == "-") return Value::Float(a - b);
  if (op == "*") return Value::Float(a * b);
  if (op == "**") return Value::Float(std::pow(a, b));
  if (b == 0) return absl::InvalidArgumentError("division by zero");
  if (op == "/") return Value::Float(a / b);
  const double floor = std::floor(a / b);
  return Value::Float(op == "//" ? floor : a - floor * b);
}

}  // namespace

absl::StatusOr<Value> Interpreter::Evaluate(const Expr& expr) {
  absl::StatusOr<Value> value = ++depth_ > options_.limits.depth
                                    ? absl::ResourceExhaustedError(absl::StrCat(
                                          "more than ", options_.limits.depth,
                                          " statements, expressions and calls in each other"))
                                    : EvaluateKind(expr);
  --depth_;
  if (value.ok() && value->depth() > kMostValueNesting) {
    value = absl::ResourceExhaustedError(
        absl::StrCat("lists and dicts nested deeper than ", kMostValueNesting));
  }
  if (value.ok() || located_) return value;
  located_ = true;
  return WithLine(value.status(), expr.line);
}

absl::StatusOr<Value> Interpreter::EvaluateKind(const Expr& expr) {
  MR_RETURN_IF_ERROR(Step());
  switch (expr.kind) {
    case Expr::Kind::kConstant:
      return expr.value;
    case Expr::Kind::kName:
      return EvaluateName(expr);
    case Expr::Kind::kList:
    case Expr::Kind::kTuple:
      return EvaluateList(expr);
    case Expr::Kind::kDict:
      return EvaluateDict(expr);
    case Expr::Kind::kNot: {
      MR_ASSIGN_OR_RETURN(const Value value, Evaluate(*expr.args[0]));
      return Value::Bool(!value.truth());
    }
    case Expr::Kind::kNegate:
    case Expr::Kind::kPlus:
      return Negate(expr);
    case Expr::Kind::kAnd:
    case Expr::Kind::kOr: {
      Value value;
      for (const ExprPtr& arg : expr.args) {
        MR_ASSIGN_OR_RETURN(value, Evaluate(*arg));
        if (value.truth() == (expr.kind == Expr::Kind::kOr)) break;
      }
      return value;
    }
    case Expr::Kind::kBinary: {
      MR_ASSIGN_OR_RETURN(const Value a, Evaluate(*expr.args[0]));
      MR_ASSIGN_OR_RETURN(const Value b, Evaluate(*expr.args[1]));
      return Binary(expr.name, a, b);
    }
    case Expr::Kind::kCompare:
      return EvaluateCompare(expr);
    case Expr::Kind::kConcat:
      return EvaluateConcat(expr);
    case Expr::Kind::kCondition:
      return EvaluateCondition(expr);
    case Expr::Kind::kAttribute: {
      MR_ASSIGN_OR_RETURN(const Value object, Evaluate(*expr.args[0]));
      return Attribute(object, expr.name);
    }
    case Expr::Kind::kItem: {
      MR_ASSIGN_OR_RETURN(const Value object, Evaluate(*expr.args[0]));
      MR_ASSIGN_OR_RETURN(const Value key, Evaluate(*expr.args[1]));
      return Item(object, key);
    }
    case Expr::Kind::kSlice:
      return EvaluateSlice(expr);
    case Expr::Kind::kCall:
      return EvaluateCall(expr);
    case Expr::Kind::kFilter:
      return EvaluateFilter(expr, nullptr);
    case Expr::Kind::kTest:
      return EvaluateTest(expr);
  }
  return Value();
}

absl::StatusOr<Value> Interpreter::EvaluateName(const Expr& expr) {
  if (const Value* value = Find(expr.name)) return *value;
  const Value global = GlobalFunction(expr.name);
  if (!global.is_undefined()) return global;
  return Value::UndefinedNamed(absl::StrCat("'", expr.name, "' is undefined"));
}

absl::StatusOr<Value> Interpreter::EvaluateList(const Expr& expr) {
  List list;
  list.tuple = expr.kind == Expr::Kind::kTuple;
  MR_RETURN_IF_ERROR(Charge(expr.args.size() * sizeof(Value)));
  for (const ExprPtr& arg : expr.args) {
    MR_ASSIGN_OR_RETURN(Value item, Evaluate(*arg));
    list.items.push_back(std::move(item));
  }
  return Value::Of(std::move(list));
}

absl::StatusOr<Value> Interpreter::EvaluateDict(const Expr& expr) {
  Dict dict;
  MR_RETURN_IF_ERROR(Charge(expr.args.size() * 64));
  for (size_t i = 0; i < expr.args.size(); i += 2) {
    MR_ASSIGN_OR_RETURN(const Value key, Evaluate(*expr.args[i]));
    MR_ASSIGN_OR_RETURN(Value item, Evaluate(*expr.args[i + 1]));
    if (!dict.Set(key, std::move(item))) {
      return absl::UnimplementedError(
          absl::StrCat("a dict key of type ", key.TypeName(), " is not supported"));
    }
  }
  return Value::Of(std::move(dict));
}

absl::StatusOr<Value> Interpreter::Negate(const Expr& expr) {
  MR_ASSIGN_OR_RETURN(const Value value, Evaluate(*expr.args[0]));
  if (!value.is_number()) {
    return value.is_undefined() ? Undefined(value)
                                : absl::InvalidArgumentError(absl::StrCat(
                                      "a sign before a value of type ", value.TypeName()));
  }
  if (expr.kind == Expr::Kind::kPlus) return value;
  return value.is_float() ? Value::Float(-value.number()) : Integers("-", 0, value.integer());
}

absl::StatusOr<Value> Interpreter::Binary(absl::string_view op, const Value& a, const Value& b) {
  if (a.is_undefined()) return Undefined(a);
  if (b.is_undefined()) return Undefined(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return Integers(op, a.integer(), b.integer());
    return Floats(op, a.number(), b.number());
  }
  if (op == "+" && a.text() != nullptr && b.text() != nullptr) {
    MR_RETURN_IF_ERROR(Charge(a.text()->size() + b.text()->size()));
    Text text = *a.text();
    text.Append(*b.text());
    return Value::Of(std::move(text));
  }
  if (op == "+" && a.list() != nullptr && b.list() != nullptr &&
      a.list()->tuple == b.list()->tuple) {
    MR_RETURN_IF_ERROR(Charge((a.list()->items.size() + b.list()->items.size()) * sizeof(Value)));
    List list = *a.list();
    list.items.insert(list.items.end(), b.list()->items.begin(), b.list()->items.end());
    return Value::Of(std::move(list));
  }
  if (op == "*" && a.text() != nullptr && b.is_integral()) {
    const auto times = static_cast<size_t>(std::max<int64_t>(0, b.integer()));
    size_t size = 0;
    if (__builtin_mul_overflow(times, a.text()->size(), &size)) return Overflow(op);
    MR_RETURN_IF_ERROR(Charge(size));
    Text text;
    for (size_t i = 0; size > 0 && i < times; ++i) text.Append(*a.text());
    return Value::Of(std::move(text));
  }
  if (op == "*" && a.is_integral() && b.text() != nullptr) return Binary(op, b, a);
  if (op == "%" && a.text() != nullptr) {
    return absl::UnimplementedError("formatting with % is not supported");
  }
  return BadOperands(op, a, b);
}

absl::StatusOr<bool> Interpreter::Contains(const Value& container, const Value& item) {
  if (container.is_undefined()) return false;
  if (const Text* text = container.text()) {
    if (item.text() == nullptr) return BadOperands("in", item, container);
    MR_RETURN_IF_ERROR(StepOver(*text));
    return absl::StrContains(text->bytes(), item.text()->bytes());
  }
  if (const Dict* dict = container.dict()) return dict->Find(item) != nullptr;
  if (const List* list = container.list()) {
    for (const Value& other : list->items) {
      MR_RETURN_IF_ERROR(Step());
      if (Equal(other, item, &steps_left_)) return true;
    }
    return false;
  }
  return BadOperands("in", item, container);
}

absl::StatusOr<bool> Interpreter::CompareBy(absl::string_view op, const Value& a, const Value& b) {
  if (op == "in" || op == "not in") {
    MR_ASSIGN_OR_RETURN(const bool found, Contains(b, a));
    return found == (op == "in");
  }
  if (op == "==" || op == "!=") {
    const bool equal = Equal(a, b, &steps_left_);
    MR_RETURN_IF_ERROR(Step());
    return equal == (op == "==");
  }
  if (a.is_undefined()) return Undefined(a);
  if (b.is_undefined()) return Undefined(b);
  const bool swapped = op == ">" || op == "<=";  // b < a, not b < a
  MR_ASSIGN_OR_RETURN(const bool less,
                      swapped ? Less(b, a, &steps_left_) : Less(a, b, &steps_left_));
  MR_RETURN_IF_ERROR(Step());
  return less == (op == "<" || op == ">");
}

absl::StatusOr<Value> Interpreter::EvaluateCompare(const Expr& expr) {
  MR_ASSIGN_OR_RETURN(Value left, Evaluate(*expr.args[0]));
  for (size_t i = 0; i < expr.names.size(); ++i) {
    MR_ASSIGN_OR_RETURN(Value right, Evaluate(*expr.args[i + 1]));
    MR_ASSIGN_OR_RETURN(const bool holds, CompareBy(expr.names[i], left, right));
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

absl::StatusOr<Value> Interpreter::EvaluateConcat(const Expr& expr) {
  Text text;
  for (const ExprPtr& arg : expr.args) {
    MR_ASSIGN_OR_RETURN(const Value value, Evaluate(*arg));
    MR_ASSIGN_OR_RETURN(const Text part, ToText(value));
    MR_RETURN_IF_ERROR(Charge(part.size()));
    text.Append(part);
  }
  return Value::Of(std::move(text));
}

absl::StatusOr<Value> Interpreter::EvaluateCondition(const Expr& expr) {
  MR_ASSIGN_OR_RETURN(const Value guard, Evaluate(*expr.args[1]));
  if (guard.truth()) return Evaluate(*expr.args[0]);
  if (expr.args.size() > 2) return Evaluate(*expr.args[2]);
  return Value::UndefinedNamed("the value of an 'if' without 'else' whose condition is false");
}

absl::StatusOr<Value> Interpreter::EvaluateSlice(const Expr& expr) {
  MR_ASSIGN_OR_RETURN(const Value object, Evaluate(*expr.args[0]));
  std::vector<Value> parts(3, Value::MakeNone());
  for (size_t i = 0; i < 3; ++i) {
    if (expr.args[i + 1] == nullptr) continue;
    MR_ASSIGN_OR_RETURN(parts[i], Evaluate(*expr.args[i + 1]));
    if (!parts[i].is_none() && !parts[i].is_integral()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a slice with a ", parts[i].TypeName(), " in it"));
    }
  }
  if (object.text() == nullptr && object.list() == nullptr) {
    return object.is_undefined()
               ? Undefined(object)
               : absl::InvalidArgumentError(absl::StrCat("a slice of a ", object.TypeName()));
  }
  const int64_t step = parts[2].is_none() ? 1 : parts[2].integer();
  if (step == 0) return absl::InvalidArgumentError("a slice with step 0");
  const Text* text = object.text();
  if (text != nullptr) MR_RETURN_IF_ERROR(StepOver(*text));
  const auto size = static_cast<int64_t>(text != nullptr ? CharacterCount(text->bytes())
                                                         : object.list()->items.size());
  // As slice.indices() of Python has it.
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto bound = [&](const Value& part, int64_t otherwise) {
    if (part.is_none()) return otherwise;
    const int64_t at = part.integer();
    return std::clamp(at < 0 ? at + size : at, low, high);
  };
  const int64_t begin = bound(parts[0], step > 0 ? low : high);
  const int64_t end = bound(parts[1], step > 0 ? high : low);
  if (text != nullptr && step == 1) {
    const size_t from = CharacterPosition(text->bytes(), static_cast<size_t>(begin));
    const size_t to = CharacterPosition(text->bytes(), static_cast<size_t>(end));
    MR_RETURN_IF_ERROR(Charge(to > from ? to - from : 0));
    return Value::Of(text->Sub(from, std::max(from, to)));
  }
  MR_ASSIGN_OR_RETURN(const std::vector<Value> items, Items(object));
  List list;
  if (object.list() != nullptr) {
    list.tuple = object.list()->tuple;
    list.origin = object.list()->origin;
  }
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    list.items.push_back(items[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  if (text == nullptr) return Value::Of(std::move(list));
  Text out;
  for (const Value& item : list.items) out.Append(*item.text());
  return Value::Of(std::move(out));
}

absl::StatusOr<Arguments> Interpreter::EvaluateArguments(const Expr& expr, size_t first) {
  Arguments args;
  for (size_t i = first; i < expr.args.size(); ++i) {
    MR_ASSIGN_OR_RETURN(Value value, Evaluate(*expr.args[i]));
    args.positional.push_back(std::move(value));
  }
  for (const auto& [name, arg] : expr.named) {
    MR_ASSIGN_OR_RETURN(Value value, Evaluate(*arg));
    args.named.emplace_back(name, std::move(value));
  }
  return args;
}

absl::StatusOr<Value> Interpreter::EvaluateCall(const Expr& expr) {
  const Expr& callee = *expr.args[0];
  if (callee.kind == Expr::Kind::kAttribute) {
    MR_ASSIGN_OR_RETURN(const Value object, Evaluate(*callee.args[0]));
    MR_ASSIGN_OR_RETURN(const Arguments args, EvaluateArguments(expr, 1));
    if (HasMethod(object, callee.name)) return CallMethod(this, object, callee.name, args);
    MR_ASSIGN_OR_RETURN(const Value function, Attribute(object, callee.name));
    if (function.is_undefined() && !object.is_undefined() && object.dict() == nullptr) {
      return absl::UnimplementedError(absl::StrCat("the method \"", callee.name, "\" of ",
                                                   object.TypeName(), " is not supported"));
    }
    return Call(function, args);
  }
  MR_ASSIGN_OR_RETURN(const Value function, Evaluate(callee));
  MR_ASSIGN_OR_RETURN(const Arguments args, EvaluateArguments(expr, 1));
  return Call(function, args);
}

absl::StatusOr<Value> Interpreter::Call(const Value& function, const Arguments& args) {
  if (const Callable* callable = function.callable()) return callable->call(this, args);
  if (const Loop* loop = function.loop(); loop != nullptr && loop->recurse) {
    const auto recurse = loop->recurse;
    return recurse(this, args);
  }
  if (function.is_undefined()) return Undefined(function);
  return absl::InvalidArgumentError(absl::StrCat("a ", function.TypeName(), " is called"));
}

absl::StatusOr<Value> Interpreter::EvaluateFilter(const Expr& expr, const Value* input) {
  Value value;
  if (expr.args[0] != nullptr && input != nullptr) {
    // A chain of filters over what a block holds.
    MR_ASSIGN_OR_RETURN(value, EvaluateFilter(*expr.args[0], input));
  } else if (expr.args[0] != nullptr) {
    MR_ASSIGN_OR_RETURN(value, Evaluate(*expr.args[0]));
  } else if (input != nullptr) {
    value = *input;
  }
  MR_ASSIGN_OR_RETURN(const Arguments args, EvaluateArguments(expr, 1));
  return ApplyFilter(this, expr.name, value, args);
}

absl::StatusOr<Value> Interpreter::EvaluateTest(const Expr& expr) {
  MR_ASSIGN_OR_RETURN(const Value value, Evaluate(*expr.args[0]));
  MR_ASSIGN_OR_RETURN(const Arguments args, EvaluateArguments(expr, 1));
  MR_ASSIGN_OR_RETURN(const bool holds, ApplyTest(this, expr.name, value, args));
  return Value::Bool(holds);
}

}  // namespace millrace::jinja
