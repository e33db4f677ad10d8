// Values of templates, with Python's meaning of truth, equality, order and printing. Values are
// immutable and cheap to copy, but for namespaces. Not thread-safe.
#ifndef MILLRACE_MODEL_JINJA_VALUE_H_
#define MILLRACE_MODEL_JINJA_VALUE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/jinja/text.h"
#include "nlohmann/json.hpp"

namespace millrace::jinja {

class Value;
class Dict;
class Interpreter;

struct List {
  std::vector<Value> items;
  bool tuple = false;
  int32_t origin = kTemplateOrigin;  // of the brackets, when it is printed
  int depth = 1;                     // of lists in lists; set by Value::Of
};

// Arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Callable {
  std::string name;
  int depth = 1;  // one more than that of the object it is bound to
  std::function<absl::StatusOr<Value>(Interpreter*, const Arguments&)> call;
};

struct Namespace {
  std::vector<std::pair<std::string, Value>> fields;
};

// The `loop` variable. The items live as long as the loop runs.
struct Loop {
  const std::vector<Value>* items = nullptr;
  size_t index0 = 0;
  size_t depth0 = 0;
  std::shared_ptr<std::vector<Value>> last_changed;
  std::function<absl::StatusOr<Value>(Interpreter*, const Arguments&)> recurse;  // may be empty
};

class Value {
 public:
  struct Undefined {
    std::shared_ptr<const std::string> name;  // for messages; may be null
  };
  struct None {};
  using TextPtr = std::shared_ptr<const Text>;
  using ListPtr = std::shared_ptr<const List>;
  using DictPtr = std::shared_ptr<const Dict>;
  using NamespacePtr = std::shared_ptr<Namespace>;
  using CallablePtr = std::shared_ptr<const Callable>;
  using LoopPtr = std::shared_ptr<Loop>;

  Value() : v_(Undefined{}) {}
  static Value UndefinedNamed(std::string name);
  static Value MakeNone() { return Value(None{}); }
  static Value Bool(bool b) { return Value(b); }
  static Value Int(int64_t i) { return Value(i); }
  static Value Float(double d) { return Value(d); }
  static Value Of(Text text) { return Value(std::make_shared<const Text>(std::move(text))); }
  static Value Literal(absl::string_view text) { return Of(Text(text, kTemplateOrigin)); }
  static Value Of(List list);
  static Value Of(Dict dict);
  static Value Of(Callable call) {
    return Value(std::make_shared<const Callable>(std::move(call)));
  }
  static Value Of(NamespacePtr ns) { return Value(std::move(ns)); }
  static Value Of(LoopPtr loop) { return Value(std::move(loop)); }
  // All strings and brackets get `origin`. Recurses as deep as the JSON is.
  static Value FromJson(const nlohmann::ordered_json& json, int32_t origin);

  bool is_undefined() const { return std::holds_alternative<Undefined>(v_); }
  bool is_none() const { return std::holds_alternative<None>(v_); }
  bool is_bool() const { return std::holds_alternative<bool>(v_); }
  bool is_int() const { return std::holds_alternative<int64_t>(v_); }  // not bool
  bool is_float() const { return std::holds_alternative<double>(v_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_integral() const { return is_bool() || is_int(); }
  // Null when the value is of another kind.
  const Text* text() const { return Get<TextPtr>(); }
  const List* list() const { return Get<ListPtr>(); }
  const Dict* dict() const { return Get<DictPtr>(); }
  const Callable* callable() const { return Get<CallablePtr>(); }
  Namespace* ns() const { return Get<NamespacePtr>(); }
  Loop* loop() const { return Get<LoopPtr>(); }

  // Nesting of lists and dicts; 0 for others. Bounded by the interpreter.
  int depth() const;
  bool truth() const;
  int64_t integer() const;  // of is_integral()
  double number() const;    // of is_number()
  // As Python calls the type: "str", "list", ...
  std::string TypeName() const;
  // "'x' is undefined", say.
  std::string UndefinedMessage() const;

 private:
  template <typename T>
  explicit Value(T v) : v_(std::move(v)) {}
  template <typename Ptr>
  auto Get() const -> decltype(std::declval<Ptr>().get()) {
    const Ptr* p = std::get_if<Ptr>(&v_);
    return p == nullptr ? nullptr : p->get();
  }

  std::variant<Undefined, None, bool, int64_t, double, TextPtr, ListPtr, DictPtr, NamespacePtr,
               CallablePtr, LoopPtr>
      v_;
};

// Keys are strings and integers, in the order they came.
class Dict {
 public:
  explicit Dict(int32_t origin = kTemplateOrigin) : origin_(origin) {}
  // False when the key is neither a string nor an integer.
  bool Set(const Value& key, Value value);
  const Value* Find(const Value& key) const;
  const Value* Find(absl::string_view key) const;
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  size_t size() const { return items_.size(); }
  int32_t origin() const { return origin_; }
  int depth() const { return depth_; }

 private:
  static bool IndexKey(const Value& key, std::string* out);
  int32_t origin_;
  int depth_ = 1;
  std::vector<std::pair<Value, Value>> items_;
  absl::flat_hash_map<std::string, size_t> index_;
};

// `steps` goes down with every value looked at; at 0 the answer is false.
bool Equal(const Value& a, const Value& b, int64_t* steps);
// a < b; INVALID_ARGUMENT when they have no order.
absl::StatusOr<bool> Less(const Value& a, const Value& b, int64_t* steps);
// str(value) and repr(value). `most` bounds the size: RESOURCE_EXHAUSTED beyond it.
absl::StatusOr<Text> Str(const Value& value, size_t most);
// As Python writes a float.
std::string FloatText(double value);

struct JsonOptions {
  std::string indent;  // one level; empty with `pretty` false
  bool pretty = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
  bool ensure_ascii = false;
  size_t most = 0;  // bytes; RESOURCE_EXHAUSTED beyond
};
// json.dumps(value). INVALID_ARGUMENT names a type that is no JSON.
absl::StatusOr<Text> ToJson(const Value& value, const JsonOptions& options);

}  // namespace millrace::jinja

#endif  // MILLRACE_MODEL_JINJA_VALUE_H_
