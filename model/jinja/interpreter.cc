#include "model/jinja/interpreter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace millrace::jinja {

Interpreter::Interpreter(const Variables& variables, const RenderOptions& options)
    : options_(options),
      variables_(variables),
      steps_left_(options.limits.steps),
      bytes_left_(options.limits.total_bytes),
      frame_(std::make_shared<Frame>()) {}

Interpreter::~Interpreter() {
  for (const auto& ns : namespaces_) ns->fields.clear();
}

absl::StatusOr<Text> Interpreter::Run(const Body& body) {
  Text out;
  out_ = &out;
  MR_RETURN_IF_ERROR(Execute(body).status());
  return out;
}

absl::Status Interpreter::Charge(size_t bytes) {
  if (bytes > bytes_left_) {
    return absl::ResourceExhaustedError(absl::StrCat("the template makes values of more than ",
                                                     options_.limits.total_bytes, " bytes in all"));
  }
  bytes_left_ -= bytes;
  return absl::OkStatus();
}

absl::Status Interpreter::Step(int64_t steps) {
  steps_left_ -= steps;
  if (steps_left_ > 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the template takes more than ", options_.limits.steps, " steps"));
}

absl::Status Interpreter::WithLine(absl::Status status, int line) const {
  return absl::Status(status.code(), absl::StrCat("line ", line, ": ", status.message()));
}

Value Interpreter::NewNamespace() {
  namespaces_.push_back(std::make_shared<Namespace>());
  return Value::Of(namespaces_.back());
}

absl::StatusOr<Text> Interpreter::ToText(const Value& value) {
  if (const Text* text = value.text()) return *text;
  MR_ASSIGN_OR_RETURN(Text text, Str(value, options_.limits.most_text_bytes));
  MR_RETURN_IF_ERROR(Charge(text.size()));
  return text;
}

absl::Status Interpreter::Write(const Text& text) {
  MR_RETURN_IF_ERROR(Charge(text.size()));
  if (out_->size() + text.size() > options_.limits.most_text_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the template writes more than ", options_.limits.most_text_bytes, " bytes"));
  }
  out_->Append(text);
  return absl::OkStatus();
}

void Interpreter::Define(const std::string& name, Value value) {
  for (auto& [known, old] : frame_->variables) {
    if (known != name) continue;
    old = std::move(value);
    return;
  }
  frame_->variables.emplace_back(name, std::move(value));
}

const Value* Interpreter::Find(const std::string& name) const {
  for (const Frame* frame = frame_.get(); frame != nullptr; frame = frame->parent.get()) {
    for (const auto& [known, value] : frame->variables) {
      if (known == name) return &value;
    }
  }
  for (const auto& [known, value] : variables_) {
    if (known == name) return &value;
  }
  return nullptr;
}

absl::Status Interpreter::Assign(const std::vector<std::string>& targets, const Value& value) {
  if (targets.size() == 1) {
    Define(targets[0], value);
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(const std::vector<Value> items, Items(value));
  if (items.size() != targets.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(items.size(), " values for ", targets.size(), " names"));
  }
  for (size_t i = 0; i < targets.size(); ++i) Define(targets[i], items[i]);
  return absl::OkStatus();
}

absl::StatusOr<Interpreter::Flow> Interpreter::Execute(const Body& body) {
  for (const Node& node : body) {
    absl::StatusOr<Flow> flow = ++depth_ > options_.limits.depth
                                    ? absl::ResourceExhaustedError(absl::StrCat(
                                          "more than ", options_.limits.depth,
                                          " statements, expressions and calls in each other"))
                                    : ExecuteNode(node);
    --depth_;
    if (!flow.ok() && !located_) {
      located_ = true;
      return WithLine(flow.status(), node.line);
    }
    if (!flow.ok() || *flow != Flow::kOn) return flow;
  }
  return Flow::kOn;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteNode(const Node& node) {
  MR_RETURN_IF_ERROR(Step());
  switch (node.kind) {
    case Node::Kind::kText:
      MR_RETURN_IF_ERROR(Write(*node.text.text()));
      return Flow::kOn;
    case Node::Kind::kOutput: {
      MR_ASSIGN_OR_RETURN(const Value value, Evaluate(*node.exprs[0]));
      MR_ASSIGN_OR_RETURN(const Text text, ToText(value));
      MR_RETURN_IF_ERROR(Write(text));
      return Flow::kOn;
    }
    case Node::Kind::kIf:
      return ExecuteIf(node);
    case Node::Kind::kFor:
      return ExecuteFor(node);
    case Node::Kind::kSet:
    case Node::Kind::kSetBlock:
      MR_RETURN_IF_ERROR(ExecuteSet(node));
      return Flow::kOn;
    case Node::Kind::kMacro:
      Define(node.name, MakeMacro(node, 0));
      return Flow::kOn;
    case Node::Kind::kCallBlock:
      MR_RETURN_IF_ERROR(ExecuteCallBlock(node));
      return Flow::kOn;
    case Node::Kind::kFilterBlock: {
      Flow flow = Flow::kOn;
      MR_ASSIGN_OR_RETURN(Text inside, Capture(node.bodies[0], &flow));
      const Value input = Value::Of(std::move(inside));
      MR_ASSIGN_OR_RETURN(const Value value, EvaluateFilter(*node.exprs[0], &input));
      MR_ASSIGN_OR_RETURN(const Text text, ToText(value));
      MR_RETURN_IF_ERROR(Write(text));
      return flow;
    }
    case Node::Kind::kWith:
      return ExecuteWith(node);
    case Node::Kind::kGeneration: {
      Flow flow = Flow::kOn;
      MR_ASSIGN_OR_RETURN(Text inside, Capture(node.bodies[0], &flow));
      inside.MarkGenerated();
      MR_RETURN_IF_ERROR(Write(inside));
      return flow;
    }
    case Node::Kind::kBreak:
      return Flow::kBreak;
    case Node::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kOn;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteIf(const Node& node) {
  for (size_t i = 0; i < node.exprs.size(); ++i) {
    MR_ASSIGN_OR_RETURN(const Value guard, Evaluate(*node.exprs[i]));
    if (guard.truth()) return Execute(node.bodies[i]);
  }
  return node.bodies.size() > node.exprs.size() ? Execute(node.bodies.back()) : Flow::kOn;
}

absl::StatusOr<std::vector<Value>> Interpreter::Filtered(const Node& node,
                                                         std::vector<Value> items) {
  if (node.exprs[1] == nullptr) return items;
  std::vector<Value> kept;
  const std::shared_ptr<Frame> outer = frame_;
  for (Value& item : items) {
    frame_ = std::make_shared<Frame>(Frame{outer, {}});
    MR_RETURN_IF_ERROR(Assign(node.targets, item));
    MR_ASSIGN_OR_RETURN(const Value guard, Evaluate(*node.exprs[1]));
    if (guard.truth()) kept.push_back(std::move(item));
  }
  frame_ = outer;
  return kept;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteFor(const Node& node) {
  MR_ASSIGN_OR_RETURN(const Value over, Evaluate(*node.exprs[0]));
  MR_ASSIGN_OR_RETURN(std::vector<Value> items, Items(over));
  MR_RETURN_IF_ERROR(ForItems(node, std::move(items), 0));
  return Flow::kOn;
}

absl::Status Interpreter::ForItems(const Node& node, std::vector<Value> items, size_t depth0) {
  MR_ASSIGN_OR_RETURN(items, Filtered(node, std::move(items)));
  const std::shared_ptr<Frame> outer = frame_;
  if (items.empty() && node.bodies.size() > 1) {
    frame_ = std::make_shared<Frame>(Frame{outer, {}});
    MR_RETURN_IF_ERROR(Execute(node.bodies[1]).status());
  }
  auto loop = std::make_shared<Loop>();
  loop->items = &items;
  loop->depth0 = depth0;
  if (node.recursive) {
    loop->recurse = [&node, outer, depth0](Interpreter* in,
                                           const Arguments& args) -> absl::StatusOr<Value> {
      MR_ASSIGN_OR_RETURN(const auto bound, Bind("loop()", args, {"items"}));
      if (bound[0] == nullptr) return absl::InvalidArgumentError("loop() needs items");
      MR_ASSIGN_OR_RETURN(std::vector<Value> inner, in->Items(*bound[0]));
      Text text;
      Text* const out = std::exchange(in->out_, &text);
      const std::shared_ptr<Frame> here = std::exchange(in->frame_, outer);
      MR_RETURN_IF_ERROR(in->ForItems(node, std::move(inner), depth0 + 1));
      in->out_ = out;
      in->frame_ = here;
      return Value::Of(std::move(text));
    };
  }
  for (size_t i = 0; i < items.size(); ++i) {
    loop->index0 = i;
    frame_ = std::make_shared<Frame>(Frame{outer, {}});
    MR_RETURN_IF_ERROR(Assign(node.targets, items[i]));
    Define("loop", Value::Of(loop));
    MR_ASSIGN_OR_RETURN(const Flow flow, Execute(node.bodies[0]));
    if (flow == Flow::kBreak) break;
  }
  loop->items = nullptr;
  loop->recurse = nullptr;
  frame_ = outer;
  return absl::OkStatus();
}

absl::Status Interpreter::ExecuteSet(const Node& node) {
  Value value;
  if (node.kind == Node::Kind::kSetBlock) {
    Flow flow = Flow::kOn;
    MR_ASSIGN_OR_RETURN(Text inside, Capture(node.bodies[0], &flow));
    value = Value::Of(std::move(inside));
    if (node.exprs[0] != nullptr) {
      const Value input = value;
      MR_ASSIGN_OR_RETURN(value, EvaluateFilter(*node.exprs[0], &input));
    }
  } else {
    MR_ASSIGN_OR_RETURN(value, Evaluate(*node.exprs[0]));
  }
  if (node.attribute.empty()) return Assign(node.targets, value);
  const Value* object = Find(node.name);
  Namespace* ns = object == nullptr ? nullptr : object->ns();
  if (ns == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", node.name, "\" is no namespace, so its fields can't be set"));
  }
  for (auto& [name, field] : ns->fields) {
    if (name != node.attribute) continue;
    field = value;
    return absl::OkStatus();
  }
  MR_RETURN_IF_ERROR(Charge(64));
  ns->fields.emplace_back(node.attribute, value);
  return absl::OkStatus();
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteWith(const Node& node) {
  const std::shared_ptr<Frame> outer = frame_;
  auto inner = std::make_shared<Frame>(Frame{outer, {}});
  for (size_t i = 0; i < node.targets.size(); ++i) {
    MR_ASSIGN_OR_RETURN(Value value, Evaluate(*node.exprs[i]));
    inner->variables.emplace_back(node.targets[i], std::move(value));
  }
  frame_ = inner;
  MR_ASSIGN_OR_RETURN(const Flow flow, Execute(node.bodies[0]));
  frame_ = outer;
  return flow;
}

absl::StatusOr<Text> Interpreter::Capture(const Body& body, Flow* flow) {
  Text text;
  Text* const out = std::exchange(out_, &text);
  const std::shared_ptr<Frame> outer = frame_;
  frame_ = std::make_shared<Frame>(Frame{outer, {}});
  MR_ASSIGN_OR_RETURN(*flow, Execute(body));
  frame_ = outer;
  out_ = out;
  return text;
}

Value Interpreter::MakeMacro(const Node& node, size_t first_default) {
  Callable macro;
  macro.name = node.name.empty() ? "caller" : node.name;
  // The frame would hold the macro and the macro the frame: it holds it weakly.
  macro.call = [&node, first_default, closure = std::weak_ptr<Frame>(frame_)](
                   Interpreter* in, const Arguments& args) -> absl::StatusOr<Value> {
    const std::shared_ptr<Frame> frame = closure.lock();
    if (frame == nullptr) {
      return absl::InvalidArgumentError("a macro is called outside of the block it stands in");
    }
    return in->CallMacro(node, first_default, frame, args);
  };
  return Value::Of(std::move(macro));
}

absl::StatusOr<Value> Interpreter::CallMacro(const Node& node, size_t first_default,
                                             std::shared_ptr<Frame> closure,
                                             const Arguments& args) {
  Arguments rest = args;
  Value caller;
  for (auto it = rest.named.begin(); it != rest.named.end();) {
    if (it->first == "caller") {
      caller = it->second;
      it = rest.named.erase(it);
    } else {
      ++it;
    }
  }
  const std::vector<absl::string_view> parameters(node.targets.begin(), node.targets.end());
  MR_ASSIGN_OR_RETURN(const auto bound,
                      Bind(absl::StrCat("the macro \"", node.name, "\""), rest, parameters));
  Text text;
  Text* const out = std::exchange(out_, &text);
  const std::shared_ptr<Frame> outer =
      std::exchange(frame_, std::make_shared<Frame>(Frame{std::move(closure), {}}));
  if (!caller.is_undefined()) Define("caller", caller);
  for (size_t i = 0; i < bound.size(); ++i) {
    const ExprPtr& missing = node.exprs[first_default + i];
    if (bound[i] != nullptr) {
      Define(node.targets[i], *bound[i]);
    } else if (missing != nullptr) {
      MR_ASSIGN_OR_RETURN(Value value, Evaluate(*missing));
      Define(node.targets[i], std::move(value));
    } else {
      Define(node.targets[i], Value::UndefinedNamed(absl::StrCat("parameter '", node.targets[i],
                                                                 "' was not provided")));
    }
  }
  MR_RETURN_IF_ERROR(Execute(node.bodies[0]).status());
  frame_ = outer;
  out_ = out;
  return Value::Of(std::move(text));
}

absl::Status Interpreter::ExecuteCallBlock(const Node& node) {
  const Expr& call = *node.exprs[0];
  MR_ASSIGN_OR_RETURN(const Value function, Evaluate(*call.args[0]));
  MR_ASSIGN_OR_RETURN(Arguments args, EvaluateArguments(call, 1));
  args.named.emplace_back("caller", MakeMacro(node, 1));
  MR_ASSIGN_OR_RETURN(const Value value, Call(function, args));
  MR_ASSIGN_OR_RETURN(const Text text, ToText(value));
  return Write(text);
}

}  // namespace millrace::jinja
