// Runs a parsed template. Not thread-safe; one for each rendering.
#ifndef MILLRACE_MODEL_JINJA_INTERPRETER_H_
#define MILLRACE_MODEL_JINJA_INTERPRETER_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "model/jinja/ast.h"
#include "model/jinja/builtins.h"
#include "model/jinja/template.h"
#include "model/jinja/value.h"

namespace millrace::jinja {

class Interpreter {
 public:
  Interpreter(const Variables& variables, const RenderOptions& options);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Errors name the line.
  absl::StatusOr<Text> Run(const Body& body);

  // --- for builtins; their errors get the line here ---
  // str(value), charged.
  absl::StatusOr<Text> ToText(const Value& value);
  // Takes from the budgets of bytes or steps: RESOURCE_EXHAUSTED when one is used up. To be called
  // before memory is taken that a template can make as large as it likes.
  absl::Status Charge(size_t bytes);
  absl::Status Step(int64_t steps = 1);
  // Steps for work over all of a text.
  absl::Status StepOver(const Text& text) { return Step(static_cast<int64_t>(text.size() / 64)); }
  int64_t* steps_left() { return &steps_left_; }
  size_t most_bytes() const { return options_.limits.most_text_bytes; }
  absl::Time now() const { return options_.now; }
  // What a for loop goes over: items of a list, characters, keys.
  absl::StatusOr<std::vector<Value>> Items(const Value& value);
  // object.name and object[key]; undefined when there is none.
  absl::StatusOr<Value> Attribute(const Value& object, const std::string& name);
  absl::StatusOr<Value> Item(const Value& object, const Value& key);
  absl::StatusOr<Value> Call(const Value& function, const Arguments& args);
  absl::StatusOr<Value> Binary(absl::string_view op, const Value& a, const Value& b);
  absl::StatusOr<bool> Contains(const Value& container, const Value& item);
  absl::StatusOr<bool> CompareBy(absl::string_view op, const Value& a, const Value& b);
  Value NewNamespace();

 private:
  enum class Flow { kOn, kBreak, kContinue };
  struct Frame {
    std::shared_ptr<Frame> parent;
    std::vector<std::pair<std::string, Value>> variables;
  };
  class Deeper;

  // --- statements ---
  absl::StatusOr<Flow> Execute(const Body& body);
  absl::StatusOr<Flow> ExecuteNode(const Node& node);
  absl::StatusOr<Flow> ExecuteIf(const Node& node);
  absl::StatusOr<Flow> ExecuteFor(const Node& node);
  absl::Status ForItems(const Node& node, std::vector<Value> items, size_t depth0);
  absl::StatusOr<std::vector<Value>> Filtered(const Node& node, std::vector<Value> items);
  absl::Status ExecuteSet(const Node& node);
  absl::Status ExecuteCallBlock(const Node& node);
  absl::StatusOr<Flow> ExecuteWith(const Node& node);
  absl::Status Assign(const std::vector<std::string>& targets, const Value& value);
  void Define(const std::string& name, Value value);
  const Value* Find(const std::string& name) const;
  // What the body writes, instead of writing it.
  absl::StatusOr<Text> Capture(const Body& body, Flow* flow);
  absl::Status Write(const Text& text);
  Value MakeMacro(const Node& node, size_t first_default);
  absl::StatusOr<Value> CallMacro(const Node& node, size_t first_default,
                                  std::shared_ptr<Frame> closure, const Arguments& args);

  // --- expressions ---
  absl::StatusOr<Value> Evaluate(const Expr& expr);
  absl::StatusOr<Value> EvaluateKind(const Expr& expr);
  absl::StatusOr<Value> EvaluateName(const Expr& expr);
  absl::StatusOr<Value> EvaluateList(const Expr& expr);
  absl::StatusOr<Value> EvaluateDict(const Expr& expr);
  absl::StatusOr<Value> EvaluateCompare(const Expr& expr);
  absl::StatusOr<Value> EvaluateConcat(const Expr& expr);
  absl::StatusOr<Value> EvaluateCondition(const Expr& expr);
  absl::StatusOr<Value> EvaluateSlice(const Expr& expr);
  absl::StatusOr<Value> EvaluateCall(const Expr& expr);
  absl::StatusOr<Value> EvaluateFilter(const Expr& expr, const Value* input);
  absl::StatusOr<Value> EvaluateTest(const Expr& expr);
  absl::StatusOr<Value> Negate(const Expr& expr);
  absl::StatusOr<Arguments> EvaluateArguments(const Expr& expr, size_t first);
  absl::Status WithLine(absl::Status status, int line) const;

  const RenderOptions& options_;
  const Variables& variables_;
  int64_t steps_left_;
  size_t bytes_left_;
  int depth_ = 0;
  bool located_ = false;  // the error on its way has its line
  std::shared_ptr<Frame> frame_;
  Text* out_ = nullptr;
  // What a filter block holds while its filters run.
  const Value* filter_input_ = nullptr;
  // Namespaces can hold each other; they are emptied at the end.
  std::vector<Value::NamespacePtr> namespaces_;
};

}  // namespace millrace::jinja

#endif  // MILLRACE_MODEL_JINJA_INTERPRETER_H_
