// What values have: items to go through, attributes, elements.
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/interpreter.h"

namespace millrace::jinja {
namespace {

// Index of Python's rules into `size` elements; false when there is none.
bool Index(int64_t index, size_t size, size_t* out) {
  if (index < 0) index += static_cast<int64_t>(size);
  if (index < 0 || index >= static_cast<int64_t>(size)) return false;
  *out = static_cast<size_t>(index);
  return true;
}

Value LoopAttribute(const Loop& loop, const std::string& name) {
  if (loop.items == nullptr) return Value();
  const auto size = static_cast<int64_t>(loop.items->size());
  const auto index = static_cast<int64_t>(loop.index0);
  if (name == "index") return Value::Int(index + 1);
  if (name == "index0") return Value::Int(index);
  if (name == "revindex") return Value::Int(size - index);
  if (name == "revindex0") return Value::Int(size - index - 1);
  if (name == "first") return Value::Bool(index == 0);
  if (name == "last") return Value::Bool(index + 1 == size);
  if (name == "length") return Value::Int(size);
  if (name == "depth") return Value::Int(static_cast<int64_t>(loop.depth0) + 1);
  if (name == "depth0") return Value::Int(static_cast<int64_t>(loop.depth0));
  if (name == "previtem" && index > 0) return (*loop.items)[loop.index0 - 1];
  if (name == "nextitem" && index + 1 < size) return (*loop.items)[loop.index0 + 1];
  if (name == "previtem") return Value::UndefinedNamed("there is no previous item");
  if (name == "nextitem") return Value::UndefinedNamed("there is no next item");
  return Value();
}

Value BoundMethod(const Value& object, const std::string& name) {
  Callable method;
  method.name = name;
  method.depth = object.depth() + 1;
  method.call = [object, name](Interpreter* in, const Arguments& args) {
    return CallMethod(in, object, name, args);
  };
  return Value::Of(std::move(method));
}

}  // namespace

absl::StatusOr<std::vector<Value>> Interpreter::Items(const Value& value) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (const List* list = value.list()) {
    MR_RETURN_IF_ERROR(Charge(list->items.size() * sizeof(Value)));
    return list->items;
  }
  if (const Dict* dict = value.dict()) {
    MR_RETURN_IF_ERROR(Charge(dict->size() * sizeof(Value)));
    for (const auto& [key, item] : dict->items()) items.push_back(key);
    return items;
  }
  if (const Text* text = value.text()) {
    MR_RETURN_IF_ERROR(Charge(text->size() * 128));
    for (size_t at = 0; at < text->size();) {
      const size_t length = CharacterLength(text->bytes(), at);
      items.push_back(Value::Of(text->Sub(at, at + length)));
      at += length;
    }
    return items;
  }
  return absl::InvalidArgumentError(absl::StrCat("a ", value.TypeName(), " has no items"));
}

absl::StatusOr<Value> Interpreter::Attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) return absl::InvalidArgumentError(object.UndefinedMessage());
  if (HasMethod(object, name)) return BoundMethod(object, name);
  if (const Dict* dict = object.dict()) {
    if (const Value* value = dict->Find(name)) return *value;
  } else if (const Namespace* ns = object.ns()) {
    for (const auto& [field, value] : ns->fields) {
      if (field == name) return value;
    }
  } else if (const Loop* loop = object.loop()) {
    const Value value = LoopAttribute(*loop, name);
    if (!value.is_undefined() || name == "previtem" || name == "nextitem") return value;
    return absl::UnimplementedError(absl::StrCat("loop.", name, " is not supported"));
  }
  return Value::UndefinedNamed(absl::StrCat("'", object.TypeName(), " object' has no attribute '",
                                            name, "', which is undefined"));
}

absl::StatusOr<Value> Interpreter::Item(const Value& object, const Value& key) {
  if (object.is_undefined()) return absl::InvalidArgumentError(object.UndefinedMessage());
  if (key.text() != nullptr) MR_RETURN_IF_ERROR(StepOver(*key.text()));
  size_t index = 0;
  if (const Dict* dict = object.dict()) {
    if (const Value* value = dict->Find(key)) return *value;
  } else if (const List* list = object.list(); list != nullptr && key.is_integral()) {
    if (Index(key.integer(), list->items.size(), &index)) return list->items[index];
  } else if (const Text* text = object.text(); text != nullptr && key.is_integral()) {
    MR_RETURN_IF_ERROR(StepOver(*text));
    if (Index(key.integer(), CharacterCount(text->bytes()), &index)) {
      const size_t at = CharacterPosition(text->bytes(), index);
      return Value::Of(text->Sub(at, at + CharacterLength(text->bytes(), at)));
    }
  }
  if (key.text() != nullptr) {
    if (object.dict() == nullptr || HasMethod(object, key.text()->bytes())) {
      return Attribute(object, key.text()->bytes());
    }
    return Value::UndefinedNamed(absl::StrCat("'", object.TypeName(), " object' has no attribute '",
                                              key.text()->bytes(), "', which is undefined"));
  }
  return Value::UndefinedNamed(
      absl::StrCat("an element that a ", object.TypeName(), " does not have is undefined"));
}

}  // namespace millrace::jinja
