// The tokens of a template and the place where parsing is.
#ifndef MILLRACE_MODEL_JINJA_TOKEN_STREAM_H_
#define MILLRACE_MODEL_JINJA_TOKEN_STREAM_H_

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/jinja/lexer.h"

namespace millrace::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  const Token& Peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  const Token& Next() {
    const Token& token = Peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  int line() const { return Peek().line; }
  bool TakeName(absl::string_view name) { return Take(Peek().IsName(name)); }
  bool TakeOperator(absl::string_view op) { return Take(Peek().IsOperator(op)); }
  bool TakeKind(Token::Kind kind) { return Take(Peek().kind == kind); }
  // What stands here, for messages.
  std::string Shown() const {
    switch (Peek().kind) {
      case Token::Kind::kEnd:
        return "the end of the template";
      case Token::Kind::kVariableEnd:
        return "}}";
      case Token::Kind::kBlockEnd:
        return "%}";
      default:
        return absl::StrCat("'", Peek().text.substr(0, 40), "'");
    }
  }
  absl::Status Expected(absl::string_view what) const {
    return ErrorAt(line(), absl::StrCat("expected ", what, ", found ", Shown()));
  }
  absl::Status ExpectOperator(absl::string_view op) {
    return TakeOperator(op) ? absl::OkStatus() : Expected(absl::StrCat("'", op, "'"));
  }
  absl::Status ExpectBlockEnd() {
    return TakeKind(Token::Kind::kBlockEnd) ? absl::OkStatus() : Expected("%}");
  }

 private:
  bool Take(bool here) {
    if (here) Next();
    return here;
  }
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace millrace::jinja

#endif  // MILLRACE_MODEL_JINJA_TOKEN_STREAM_H_
