#include "model/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/expression_parser.h"
#include "model/jinja/lexer.h"
#include "model/jinja/token_stream.h"

namespace millrace::jinja {
namespace {

constexpr int kMostBlockNesting = 50;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : t_(std::move(tokens)), expressions_(&t_) {}

  absl::StatusOr<Body> Template() {
    MR_ASSIGN_OR_RETURN(Body body, ParseBody({}));
    return body;
  }

 private:
  using Ends = std::initializer_list<absl::string_view>;

  // Up to one of the tags of `ends`, of which the name has been read then: ended_by_. At the top
  // level `ends` is empty and the template ends it.
  absl::StatusOr<Body> ParseBody(Ends ends) {
    if (++nesting_ > kMostBlockNesting) {
      return absl::ResourceExhaustedError(
          absl::StrCat("line ", t_.line(), ": blocks are nested deeper than ", kMostBlockNesting));
    }
    const int opened_at = t_.line();
    Body body;
    while (true) {
      if (t_.Peek().kind == Token::Kind::kEnd) {
        if (ends.size() == 0) break;
        return ErrorAt(opened_at, absl::StrCat("the block is not closed by ", *(ends.end() - 1)));
      }
      if (t_.Peek().kind == Token::Kind::kText) {
        Node node = New(Node::Kind::kText);
        node.text = Value::Literal(t_.Next().text);
        body.push_back(std::move(node));
      } else if (t_.TakeKind(Token::Kind::kVariableBegin)) {
        MR_RETURN_IF_ERROR(Output(&body));
      } else {
        t_.Next();  // {%
        if (std::any_of(ends.begin(), ends.end(),
                        [&](auto end) { return t_.Peek().IsName(end); })) {
          ended_by_ = t_.Next().text;
          break;
        }
        MR_ASSIGN_OR_RETURN(Node node, Statement());
        body.push_back(std::move(node));
      }
    }
    --nesting_;
    return body;
  }

  absl::Status Output(Body* body) {
    Node node = New(Node::Kind::kOutput);
    MR_ASSIGN_OR_RETURN(ExprPtr expr, expressions_.Tuple());
    node.exprs.push_back(std::move(expr));
    if (!t_.TakeKind(Token::Kind::kVariableEnd)) return t_.Expected("}}");
    body->push_back(std::move(node));
    return absl::OkStatus();
  }

  absl::StatusOr<Node> Statement() {
    if (t_.Peek().kind != Token::Kind::kName) return t_.Expected("the name of a tag");
    const int line = t_.line();
    const std::string tag = t_.Next().text;
    if (tag == "if") return If();
    if (tag == "for") return For();
    if (tag == "set") return Set();
    if (tag == "macro") return Macro();
    if (tag == "call") return CallBlock();
    if (tag == "filter") return FilterBlock();
    if (tag == "with") return With();
    if (tag == "generation") return Generation();
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) return ErrorAt(line, absl::StrCat("'", tag, "' outside of a loop"));
      Node node = New(tag == "break" ? Node::Kind::kBreak : Node::Kind::kContinue);
      MR_RETURN_IF_ERROR(t_.ExpectBlockEnd());
      return node;
    }
    for (absl::string_view known :
         {"raw", "block", "extends", "include", "import", "from", "do", "autoescape", "trans"}) {
      if (tag == known) return UnsupportedAt(line, absl::StrCat("the tag \"", tag, "\""));
    }
    return ErrorAt(line, absl::StrCat("unexpected tag \"", tag, "\""));
  }

  absl::StatusOr<Node> If() {
    Node node = New(Node::Kind::kIf);
    ended_by_ = "elif";
    while (ended_by_ == "elif") {
      MR_ASSIGN_OR_RETURN(ExprPtr guard, expressions_.Tuple());
      MR_RETURN_IF_ERROR(t_.ExpectBlockEnd());
      node.exprs.push_back(std::move(guard));
      MR_RETURN_IF_ERROR(AddBody(&node, {"elif", "else", "endif"}));
    }
    MR_RETURN_IF_ERROR(MaybeElse(&node, {"endif"}));
    return node;
  }

  // The body up to `ends`, into node->bodies. The tag that ended it is read but for its %}.
  absl::Status AddBody(Node* node, Ends ends) {
    MR_ASSIGN_OR_RETURN(Body body, ParseBody(ends));
    node->bodies.push_back(std::move(body));
    return absl::OkStatus();
  }
  absl::Status MaybeElse(Node* node, Ends ends) {
    MR_RETURN_IF_ERROR(t_.ExpectBlockEnd());
    if (ended_by_ != "else") return absl::OkStatus();
    MR_RETURN_IF_ERROR(AddBody(node, ends));
    return t_.ExpectBlockEnd();
  }

  // name, or name, name, ...
  absl::Status Targets(Node* node) {
    const bool brackets = t_.TakeOperator("(");
    do {
      if (t_.Peek().kind != Token::Kind::kName) return t_.Expected("a name");
      node->targets.push_back(t_.Next().text);
    } while (t_.TakeOperator(",") && t_.Peek().kind == Token::Kind::kName);
    return brackets ? t_.ExpectOperator(")") : absl::OkStatus();
  }

  absl::StatusOr<Node> For() {
    Node node = New(Node::Kind::kFor);
    MR_RETURN_IF_ERROR(Targets(&node));
    if (!t_.TakeName("in")) return t_.Expected("'in'");
    MR_ASSIGN_OR_RETURN(ExprPtr items, expressions_.Tuple(/*condition=*/false));
    node.exprs.push_back(std::move(items));
    node.exprs.push_back(nullptr);
    if (t_.TakeName("if")) {
      MR_ASSIGN_OR_RETURN(node.exprs[1], expressions_.Expression());
    }
    node.recursive = t_.TakeName("recursive");
    MR_RETURN_IF_ERROR(t_.ExpectBlockEnd());
    ++loops_;
    MR_RETURN_IF_ERROR(AddBody(&node, {"else", "endfor"}));
    --loops_;
    MR_RETURN_IF_ERROR(MaybeElse(&node, {"endfor"}));
    return node;
  }

  absl::StatusOr<Node> Set() {
    Node node = New(Node::Kind::kSet);
    if (t_.Peek().kind == Token::Kind::kName && t_.Peek(1).IsOperator(".")) {
      node.name = t_.Next().text;
      t_.Next();
      if (t_.Peek().kind != Token::Kind::kName) return t_.Expected("a name");
      node.attribute = t_.Next().text;
    } else {
      MR_RETURN_IF_ERROR(Targets(&node));
    }
    if (t_.TakeOperator("=")) {
      MR_ASSIGN_OR_RETURN(ExprPtr value, expressions_.Tuple());
      node.exprs.push_back(std::move(value));
      MR_RETURN_IF_ERROR(t_.ExpectBlockEnd());
      return node;
    }
    node.kind = Node::Kind::kSetBlock;
    node.exprs.push_back(nullptr);
    if (t_.TakeOperator("|")) {
      MR_ASSIGN_OR_RETURN(node.exprs[0], expressions_.Filters(nullptr));
    }
    MR_RETURN_IF_ERROR(t_.ExpectBlockEnd());
    MR_RETURN_IF_ERROR(AddBody(&node, {"endset"}));
    MR_RETURN_IF_ERROR(t_.ExpectBlockEnd());
    return node;
  }

  // (a, b=1) of a macro.
  absl::Status Signature(Node* node) {
    MR_RETURN_IF_ERROR(t_.ExpectOperator("("));
    while (!t_.TakeOperator(")")) {
      if (!node->targets.empty()) MR_RETURN_IF_ERROR(t_.ExpectOperator(","));
      if (t_.TakeOperator(")")) break;
      if (t_.Peek().kind != Token::Kind::kName) return t_.Expected("the name of a parameter");
      node->targets.push_back(t_.Next().text);
      node->exprs.push_back(nullptr);
      if (!t_.TakeOperator("=")) continue;
      MR_ASSIGN_OR_RETURN(node->exprs.back(), expressions_.Expression());
    }
    return absl::OkStatus();
  }

  // The body of something that a loop around it can't be left from.
  absl::Status AddOwnBody(Node* node, Ends ends) {
    const int loops = std::exchange(loops_, 0);
    MR_RETURN_IF_ERROR(AddBody(node, ends));
    loops_ = loops;
    return t_.ExpectBlockEnd();
  }

  absl::StatusOr<Node> Macro() {
    Node node = New(Node::Kind::kMacro);
    if (t_.Peek().kind != Token::Kind::kName) return t_.Expected("the name of the macro");
    node.name = t_.Next().text;
    MR_RETURN_IF_ERROR(Signature(&node));
    MR_RETURN_IF_ERROR(t_.ExpectBlockEnd());
    MR_RETURN_IF_ERROR(AddOwnBody(&node, {"endmacro"}));
    return node;
  }

  absl::StatusOr<Node> CallBlock() {
    Node node = New(Node::Kind::kCallBlock);
    Node signature = New(Node::Kind::kMacro);
    if (t_.Peek().IsOperator("(")) MR_RETURN_IF_ERROR(Signature(&signature));
    MR_ASSIGN_OR_RETURN(ExprPtr call, expressions_.Expression());
    if (call->kind != Expr::Kind::kCall) return ErrorAt(node.line, "expected a call");
    node.exprs.push_back(std::move(call));
    node.targets = std::move(signature.targets);
    for (ExprPtr& value : signature.exprs) node.exprs.push_back(std::move(value));
    MR_RETURN_IF_ERROR(t_.ExpectBlockEnd());
    MR_RETURN_IF_ERROR(AddOwnBody(&node, {"endcall"}));
    return node;
  }

  absl::StatusOr<Node> FilterBlock() {
    Node node = New(Node::Kind::kFilterBlock);
    MR_ASSIGN_OR_RETURN(ExprPtr filter, expressions_.Filters(nullptr));
    node.exprs.push_back(std::move(filter));
    MR_RETURN_IF_ERROR(t_.ExpectBlockEnd());
    MR_RETURN_IF_ERROR(AddBody(&node, {"endfilter"}));
    MR_RETURN_IF_ERROR(t_.ExpectBlockEnd());
    return node;
  }

  absl::StatusOr<Node> With() {
    Node node = New(Node::Kind::kWith);
    while (t_.Peek().kind != Token::Kind::kBlockEnd) {
      if (!node.targets.empty()) MR_RETURN_IF_ERROR(t_.ExpectOperator(","));
      if (t_.Peek().kind != Token::Kind::kName) return t_.Expected("a name");
      node.targets.push_back(t_.Next().text);
      MR_RETURN_IF_ERROR(t_.ExpectOperator("="));
      MR_ASSIGN_OR_RETURN(ExprPtr value, expressions_.Expression());
      node.exprs.push_back(std::move(value));
    }
    MR_RETURN_IF_ERROR(t_.ExpectBlockEnd());
    MR_RETURN_IF_ERROR(AddBody(&node, {"endwith"}));
    MR_RETURN_IF_ERROR(t_.ExpectBlockEnd());
    return node;
  }

  absl::StatusOr<Node> Generation() {
    Node node = New(Node::Kind::kGeneration);
    MR_RETURN_IF_ERROR(t_.ExpectBlockEnd());
    MR_RETURN_IF_ERROR(AddBody(&node, {"endgeneration"}));
    MR_RETURN_IF_ERROR(t_.ExpectBlockEnd());
    return node;
  }

  Node New(Node::Kind kind) const {
    Node node;
    node.kind = kind;
    node.line = t_.line();
    return node;
  }

  TokenStream t_;
  ExpressionParser expressions_;
  int nesting_ = 0, loops_ = 0;
  std::string ended_by_;
};

}  // namespace

absl::StatusOr<Body> ParseTemplate(absl::string_view source) {
  MR_ASSIGN_OR_RETURN(std::vector<Token> tokens, Lex(source));
  return Parser(std::move(tokens)).Template();
}

}  // namespace millrace::jinja
