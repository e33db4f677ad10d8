// Parses the expressions of templates.
#ifndef MILLRACE_MODEL_JINJA_EXPRESSION_PARSER_H_
#define MILLRACE_MODEL_JINJA_EXPRESSION_PARSER_H_

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "model/jinja/ast.h"
#include "model/jinja/token_stream.h"

namespace millrace::jinja {

inline constexpr int kMostExpressionDepth = 200;

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream* tokens) : t_(*tokens) {}

  // An expression, or several with commas between them, which are a tuple. `condition`: whether
  // `a if b else c` is part of it.
  absl::StatusOr<ExprPtr> Tuple(bool condition = true);
  absl::StatusOr<ExprPtr> Expression() { return Condition(); }
  // (a, b, c=d) of a call, the opening bracket included, into args (behind what is there) and
  // named.
  absl::Status CallArguments(Expr* call);
  // name(arguments) | name ..., applied to `input` (null for what a filter block holds).
  absl::StatusOr<ExprPtr> Filters(ExprPtr input);

 private:
  using Step = absl::StatusOr<ExprPtr> (ExpressionParser::*)();
  absl::StatusOr<ExprPtr> Condition();
  absl::StatusOr<ExprPtr> Or();
  absl::StatusOr<ExprPtr> And();
  absl::StatusOr<ExprPtr> Not();
  absl::StatusOr<ExprPtr> Compare();
  absl::StatusOr<ExprPtr> Sum();
  absl::StatusOr<ExprPtr> Concat();
  absl::StatusOr<ExprPtr> Product();
  absl::StatusOr<ExprPtr> Power();
  absl::StatusOr<ExprPtr> Unary(bool with_filters);
  absl::StatusOr<ExprPtr> UnaryWithFilters() { return Unary(true); }
  absl::StatusOr<ExprPtr> Primary();
  absl::StatusOr<ExprPtr> NameOrConstant();
  absl::StatusOr<ExprPtr> ListLiteral();
  absl::StatusOr<ExprPtr> DictLiteral();
  absl::StatusOr<ExprPtr> Postfix(ExprPtr expr);
  absl::StatusOr<ExprPtr> Subscript(ExprPtr object);
  absl::StatusOr<ExprPtr> FiltersAndTests(ExprPtr expr);
  absl::StatusOr<ExprPtr> Test(ExprPtr expr);
  // `next` parts with one of `operators` between them.
  absl::StatusOr<ExprPtr> Binary(Step next, std::vector<absl::string_view> operators);

  ExprPtr New(Expr::Kind kind) const;
  // The depth of a finished node, checked.
  absl::StatusOr<ExprPtr> Finish(ExprPtr expr) const;

  TokenStream& t_;
  int nesting_ = 0;
};

}  // namespace millrace::jinja

#endif  // MILLRACE_MODEL_JINJA_EXPRESSION_PARSER_H_
