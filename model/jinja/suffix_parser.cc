// What follows an operand of an expression: attributes, indices, calls, filters and tests.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/builtins.h"
#include "model/jinja/expression_parser.h"

namespace millrace::jinja {
namespace {

using Kind = Expr::Kind;

}  // namespace

absl::StatusOr<ExprPtr> ExpressionParser::Postfix(ExprPtr expr) {
  while (true) {
    if (t_.Peek().IsOperator("[")) {
      MR_ASSIGN_OR_RETURN(expr, Subscript(std::move(expr)));
    } else if (t_.Peek().IsOperator("(")) {
      ExprPtr call = New(Kind::kCall);
      call->args.push_back(std::move(expr));
      MR_RETURN_IF_ERROR(CallArguments(call.get()));
      MR_ASSIGN_OR_RETURN(expr, Finish(std::move(call)));
    } else if (t_.TakeOperator(".")) {
      ExprPtr access = New(Kind::kAttribute);
      access->args.push_back(std::move(expr));
      const Token& token = t_.Next();
      if (token.kind == Token::Kind::kInteger) {
        access->kind = Kind::kItem;
        ExprPtr index = New(Kind::kConstant);
        index->value = Value::Int(token.integer);
        access->args.push_back(std::move(index));
      } else if (token.kind == Token::Kind::kName) {
        access->name = token.text;
      } else {
        return ErrorAt(access->line, "expected a name behind '.'");
      }
      MR_ASSIGN_OR_RETURN(expr, Finish(std::move(access)));
    } else {
      return expr;
    }
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::Subscript(ExprPtr object) {
  ExprPtr expr = New(Kind::kItem);
  t_.Next();
  expr->args.push_back(std::move(object));
  const auto part = [&]() -> absl::Status {  // one of a slice, which may be left out
    if (t_.Peek().IsOperator(":") || t_.Peek().IsOperator("]")) {
      expr->args.push_back(nullptr);
      return absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(ExprPtr index, Condition());
    expr->args.push_back(std::move(index));
    return absl::OkStatus();
  };
  MR_RETURN_IF_ERROR(part());
  for (int colons = 0; colons < 2 && t_.TakeOperator(":"); ++colons) {
    expr->kind = Kind::kSlice;
    MR_RETURN_IF_ERROR(part());
  }
  if (t_.Peek().IsOperator(",")) return UnsupportedAt(t_.line(), "an index with several parts");
  MR_RETURN_IF_ERROR(t_.ExpectOperator("]"));
  if (expr->kind == Kind::kItem && expr->args[1] == nullptr) {
    return ErrorAt(expr->line, "an index is missing in []");
  }
  while (expr->kind == Kind::kSlice && expr->args.size() < 4) expr->args.push_back(nullptr);
  return Finish(std::move(expr));
}

absl::Status ExpressionParser::CallArguments(Expr* call) {
  MR_RETURN_IF_ERROR(t_.ExpectOperator("("));
  bool first = true;
  while (!t_.TakeOperator(")")) {
    if (!first) MR_RETURN_IF_ERROR(t_.ExpectOperator(","));
    first = false;
    if (t_.TakeOperator(")")) break;
    if (t_.Peek().IsOperator("*") || t_.Peek().IsOperator("**")) {
      return UnsupportedAt(t_.line(), "a call with * or ** arguments");
    }
    if (t_.Peek().kind == Token::Kind::kName && t_.Peek(1).IsOperator("=")) {
      const std::string name = t_.Next().text;
      t_.Next();
      MR_ASSIGN_OR_RETURN(ExprPtr value, Condition());
      call->named.emplace_back(name, std::move(value));
      continue;
    }
    if (!call->named.empty()) return ErrorAt(t_.line(), "a positional argument behind named ones");
    MR_ASSIGN_OR_RETURN(ExprPtr value, Condition());
    call->args.push_back(std::move(value));
  }
  return absl::OkStatus();
}

absl::StatusOr<ExprPtr> ExpressionParser::Filters(ExprPtr input) {
  do {
    ExprPtr filter = New(Kind::kFilter);
    if (t_.Peek().kind != Token::Kind::kName) return t_.Expected("the name of a filter");
    filter->name = t_.Next().text;
    if (!IsFilter(filter->name)) {
      return UnsupportedAt(filter->line, absl::StrCat("the filter \"", filter->name, "\""));
    }
    filter->args.push_back(std::move(input));
    if (t_.Peek().IsOperator("(")) MR_RETURN_IF_ERROR(CallArguments(filter.get()));
    MR_ASSIGN_OR_RETURN(input, Finish(std::move(filter)));
  } while (t_.TakeOperator("|"));
  return input;
}

absl::StatusOr<ExprPtr> ExpressionParser::FiltersAndTests(ExprPtr expr) {
  while (true) {
    if (t_.TakeOperator("|")) {
      MR_ASSIGN_OR_RETURN(expr, Filters(std::move(expr)));
    } else if (t_.Peek().IsName("is")) {
      MR_ASSIGN_OR_RETURN(expr, Test(std::move(expr)));
    } else if (t_.Peek().IsOperator("(")) {
      ExprPtr call = New(Kind::kCall);
      call->args.push_back(std::move(expr));
      MR_RETURN_IF_ERROR(CallArguments(call.get()));
      MR_ASSIGN_OR_RETURN(expr, Finish(std::move(call)));
    } else {
      return expr;
    }
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::Test(ExprPtr expr) {
  t_.Next();
  const bool negated = t_.TakeName("not");
  ExprPtr test = New(Kind::kTest);
  if (t_.Peek().kind != Token::Kind::kName) return t_.Expected("the name of a test");
  test->name = t_.Next().text;
  if (!IsTest(test->name)) {
    return UnsupportedAt(test->line, absl::StrCat("the test \"", test->name, "\""));
  }
  test->args.push_back(std::move(expr));
  const Token& next = t_.Peek();
  const bool word = next.kind == Token::Kind::kName && !next.IsName("else") && !next.IsName("or") &&
                    !next.IsName("and") && !next.IsName("is") && !next.IsName("if") &&
                    !next.IsName("in") && !next.IsName("not");
  if (next.IsOperator("(")) {
    MR_RETURN_IF_ERROR(CallArguments(test.get()));
  } else if (word || next.kind == Token::Kind::kString || next.kind == Token::Kind::kInteger ||
             next.kind == Token::Kind::kFloat || next.IsOperator("[") || next.IsOperator("{")) {
    MR_ASSIGN_OR_RETURN(ExprPtr argument, Primary());
    MR_ASSIGN_OR_RETURN(argument, Postfix(std::move(argument)));
    test->args.push_back(std::move(argument));
  }
  MR_ASSIGN_OR_RETURN(ExprPtr done, Finish(std::move(test)));
  if (!negated) return done;
  ExprPtr inverse = New(Kind::kNot);
  inverse->args.push_back(std::move(done));
  return Finish(std::move(inverse));
}

}  // namespace millrace::jinja
