#include "model/jinja/expression_parser.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/builtins.h"

namespace millrace::jinja {
namespace {

using Kind = Expr::Kind;

// Counts how deep the parser is in itself.
class Nested {
 public:
  explicit Nested(int* depth) : depth_(depth) { ++*depth_; }
  ~Nested() { --*depth_; }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;

 private:
  int* const depth_;
};

absl::Status TooDeep(int line) {
  return absl::ResourceExhaustedError(
      absl::StrCat("line ", line, ": an expression is nested deeper than ", kMostExpressionDepth));
}

}  // namespace

ExprPtr ExpressionParser::New(Kind kind) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = t_.line();
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::Finish(ExprPtr expr) const {
  for (const ExprPtr& arg : expr->args) {
    if (arg != nullptr) expr->depth = std::max(expr->depth, arg->depth + 1);
  }
  for (const auto& [name, arg] : expr->named) expr->depth = std::max(expr->depth, arg->depth + 1);
  if (expr->depth > kMostExpressionDepth) return TooDeep(expr->line);
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::Tuple(bool condition) {
  const auto next = [&] { return condition ? Condition() : Or(); };
  MR_ASSIGN_OR_RETURN(ExprPtr first, next());
  if (!t_.Peek().IsOperator(",")) return first;
  ExprPtr tuple = New(Kind::kTuple);
  tuple->args.push_back(std::move(first));
  while (t_.TakeOperator(",")) {
    const Token::Kind kind = t_.Peek().kind;
    if (kind == Token::Kind::kVariableEnd || kind == Token::Kind::kBlockEnd ||
        t_.Peek().IsOperator(")") || t_.Peek().IsOperator("=")) {
      break;
    }
    MR_ASSIGN_OR_RETURN(ExprPtr item, next());
    tuple->args.push_back(std::move(item));
  }
  return Finish(std::move(tuple));
}

absl::StatusOr<ExprPtr> ExpressionParser::Condition() {
  const Nested nested(&nesting_);
  if (nesting_ > kMostExpressionDepth) return TooDeep(t_.line());
  MR_ASSIGN_OR_RETURN(ExprPtr expr, Or());
  while (t_.Peek().IsName("if")) {
    ExprPtr choice = New(Kind::kCondition);
    t_.Next();
    MR_ASSIGN_OR_RETURN(ExprPtr guard, Or());
    choice->args.push_back(std::move(expr));
    choice->args.push_back(std::move(guard));
    if (t_.TakeName("else")) {
      MR_ASSIGN_OR_RETURN(ExprPtr other, Condition());
      choice->args.push_back(std::move(other));
    }
    MR_ASSIGN_OR_RETURN(expr, Finish(std::move(choice)));
  }
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::Or() {
  MR_ASSIGN_OR_RETURN(ExprPtr first, And());
  if (!t_.Peek().IsName("or")) return first;
  ExprPtr expr = New(Kind::kOr);
  expr->args.push_back(std::move(first));
  while (t_.TakeName("or")) {
    MR_ASSIGN_OR_RETURN(ExprPtr next, And());
    expr->args.push_back(std::move(next));
  }
  return Finish(std::move(expr));
}

absl::StatusOr<ExprPtr> ExpressionParser::And() {
  MR_ASSIGN_OR_RETURN(ExprPtr first, Not());
  if (!t_.Peek().IsName("and")) return first;
  ExprPtr expr = New(Kind::kAnd);
  expr->args.push_back(std::move(first));
  while (t_.TakeName("and")) {
    MR_ASSIGN_OR_RETURN(ExprPtr next, Not());
    expr->args.push_back(std::move(next));
  }
  return Finish(std::move(expr));
}

absl::StatusOr<ExprPtr> ExpressionParser::Not() {
  const Nested nested(&nesting_);
  if (nesting_ > kMostExpressionDepth) return TooDeep(t_.line());
  if (!t_.Peek().IsName("not")) return Compare();
  ExprPtr expr = New(Kind::kNot);
  t_.Next();
  MR_ASSIGN_OR_RETURN(ExprPtr operand, Not());
  expr->args.push_back(std::move(operand));
  return Finish(std::move(expr));
}

absl::StatusOr<ExprPtr> ExpressionParser::Compare() {
  MR_ASSIGN_OR_RETURN(ExprPtr first, Sum());
  ExprPtr expr = New(Kind::kCompare);
  while (true) {
    std::string op;
    for (absl::string_view known : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (t_.Peek().IsOperator(known)) op = std::string(known);
    }
    if (t_.Peek().IsName("in")) op = "in";
    if (t_.Peek().IsName("not") && t_.Peek(1).IsName("in")) {
      t_.Next();
      op = "not in";
    }
    if (op.empty()) break;
    t_.Next();
    MR_ASSIGN_OR_RETURN(ExprPtr next, Sum());
    expr->names.push_back(op);
    expr->args.push_back(std::move(next));
  }
  if (expr->args.empty()) return first;
  expr->args.insert(expr->args.begin(), std::move(first));
  return Finish(std::move(expr));
}

absl::StatusOr<ExprPtr> ExpressionParser::Binary(Step next,
                                                 std::vector<absl::string_view> operators) {
  MR_ASSIGN_OR_RETURN(ExprPtr left, (this->*next)());
  while (true) {
    const auto op = std::find_if(operators.begin(), operators.end(),
                                 [&](absl::string_view o) { return t_.Peek().IsOperator(o); });
    if (op == operators.end()) return left;
    ExprPtr expr = New(Kind::kBinary);
    t_.Next();
    expr->name = std::string(*op);
    MR_ASSIGN_OR_RETURN(ExprPtr right, (this->*next)());
    expr->args.push_back(std::move(left));
    expr->args.push_back(std::move(right));
    MR_ASSIGN_OR_RETURN(left, Finish(std::move(expr)));
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::Sum() {
  return Binary(&ExpressionParser::Concat, {"+", "-"});
}

absl::StatusOr<ExprPtr> ExpressionParser::Concat() {
  MR_ASSIGN_OR_RETURN(ExprPtr first, Product());
  if (!t_.Peek().IsOperator("~")) return first;
  ExprPtr expr = New(Kind::kConcat);
  expr->args.push_back(std::move(first));
  while (t_.TakeOperator("~")) {
    MR_ASSIGN_OR_RETURN(ExprPtr next, Product());
    expr->args.push_back(std::move(next));
  }
  return Finish(std::move(expr));
}

absl::StatusOr<ExprPtr> ExpressionParser::Product() {
  return Binary(&ExpressionParser::Power, {"*", "//", "/", "%"});
}

absl::StatusOr<ExprPtr> ExpressionParser::Power() {
  return Binary(&ExpressionParser::UnaryWithFilters, {"**"});
}

absl::StatusOr<ExprPtr> ExpressionParser::Unary(bool with_filters) {
  const Nested nested(&nesting_);
  if (nesting_ > kMostExpressionDepth) return TooDeep(t_.line());
  ExprPtr expr;
  if (t_.Peek().IsOperator("-") || t_.Peek().IsOperator("+")) {
    expr = New(t_.Peek().IsOperator("-") ? Kind::kNegate : Kind::kPlus);
    t_.Next();
    MR_ASSIGN_OR_RETURN(ExprPtr operand, Unary(false));
    expr->args.push_back(std::move(operand));
    MR_ASSIGN_OR_RETURN(expr, Finish(std::move(expr)));
  } else {
    MR_ASSIGN_OR_RETURN(expr, Primary());
  }
  MR_ASSIGN_OR_RETURN(expr, Postfix(std::move(expr)));
  return with_filters ? FiltersAndTests(std::move(expr)) : std::move(expr);
}

absl::StatusOr<ExprPtr> ExpressionParser::Primary() {
  const Token& token = t_.Peek();
  ExprPtr expr = New(Kind::kConstant);
  switch (token.kind) {
    case Token::Kind::kName:
      return NameOrConstant();
    case Token::Kind::kString: {
      std::string text;  // strings side by side are one
      while (t_.Peek().kind == Token::Kind::kString) text += t_.Next().text;
      expr->value = Value::Literal(text);
      return expr;
    }
    case Token::Kind::kInteger:
      expr->value = Value::Int(t_.Next().integer);
      return expr;
    case Token::Kind::kFloat:
      expr->value = Value::Float(t_.Next().number);
      return expr;
    default:
      break;
  }
  if (t_.TakeOperator("(")) {
    if (t_.TakeOperator(")")) {
      expr->kind = Kind::kTuple;
      return expr;
    }
    MR_ASSIGN_OR_RETURN(expr, Tuple());
    MR_RETURN_IF_ERROR(t_.ExpectOperator(")"));
    return expr;
  }
  if (t_.Peek().IsOperator("[")) return ListLiteral();
  if (t_.Peek().IsOperator("{")) return DictLiteral();
  return t_.Expected("an expression");
}

absl::StatusOr<ExprPtr> ExpressionParser::NameOrConstant() {
  ExprPtr expr = New(Kind::kConstant);
  const std::string name = t_.Next().text;
  if (name == "true" || name == "True") {
    expr->value = Value::Bool(true);
  } else if (name == "false" || name == "False") {
    expr->value = Value::Bool(false);
  } else if (name == "none" || name == "None") {
    expr->value = Value::MakeNone();
  } else if (IsUnsupportedGlobal(name)) {
    return UnsupportedAt(expr->line, absl::StrCat("\"", name, "\""));
  } else {
    expr->kind = Kind::kName;
    expr->name = name;
  }
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::ListLiteral() {
  ExprPtr expr = New(Kind::kList);
  t_.Next();
  while (!t_.TakeOperator("]")) {
    if (!expr->args.empty()) MR_RETURN_IF_ERROR(t_.ExpectOperator(","));
    if (t_.TakeOperator("]")) break;
    MR_ASSIGN_OR_RETURN(ExprPtr item, Condition());
    expr->args.push_back(std::move(item));
  }
  return Finish(std::move(expr));
}

absl::StatusOr<ExprPtr> ExpressionParser::DictLiteral() {
  ExprPtr expr = New(Kind::kDict);
  t_.Next();
  while (!t_.TakeOperator("}")) {
    if (!expr->args.empty()) MR_RETURN_IF_ERROR(t_.ExpectOperator(","));
    if (t_.TakeOperator("}")) break;
    MR_ASSIGN_OR_RETURN(ExprPtr key, Condition());
    MR_RETURN_IF_ERROR(t_.ExpectOperator(":"));
    MR_ASSIGN_OR_RETURN(ExprPtr item, Condition());
    expr->args.push_back(std::move(key));
    expr->args.push_back(std::move(item));
  }
  return Finish(std::move(expr));
}

}  // namespace millrace::jinja
