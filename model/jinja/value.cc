#include "model/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "model/byte_level.h"

namespace millrace::jinja {

Value Value::UndefinedNamed(std::string name) {
  return Value(Undefined{std::make_shared<const std::string>(std::move(name))});
}

int Value::depth() const {
  if (const List* l = list()) return l->depth;
  if (const Dict* d = dict()) return d->depth();
  return callable() != nullptr ? callable()->depth : 0;
}

Value Value::Of(List list) {
  for (const Value& item : list.items) list.depth = std::max(list.depth, item.depth() + 1);
  return Value(std::make_shared<const List>(std::move(list)));
}

Value Value::Of(Dict dict) { return Value(std::make_shared<const Dict>(std::move(dict))); }

Value Value::FromJson(const nlohmann::ordered_json& json, int32_t origin) {
  if (json.is_null()) return MakeNone();
  if (json.is_boolean()) return Bool(json.get<bool>());
  if (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX) {
    return Float(json.get<double>());
  }
  if (json.is_number_integer()) return Int(json.get<int64_t>());
  if (json.is_number_float()) return Float(json.get<double>());
  if (json.is_string()) {
    return Of(Text(ReplaceInvalidUtf8(json.get_ref<const std::string&>()), origin));
  }
  if (json.is_array()) {
    List list;
    list.origin = origin;
    list.items.reserve(json.size());
    for (const auto& item : json) list.items.push_back(FromJson(item, origin));
    return Of(std::move(list));
  }
  Dict dict(origin);
  for (const auto& [key, item] : json.items()) {
    dict.Set(Of(Text(ReplaceInvalidUtf8(key), origin)), FromJson(item, origin));
  }
  return Of(std::move(dict));
}

bool Value::truth() const {
  if (const bool* b = std::get_if<bool>(&v_)) return *b;
  if (const int64_t* i = std::get_if<int64_t>(&v_)) return *i != 0;
  if (const double* d = std::get_if<double>(&v_)) return *d != 0;
  if (const Text* t = text()) return !t->empty();
  if (const List* l = list()) return !l->items.empty();
  if (const Dict* d = dict()) return d->size() > 0;
  return !is_undefined() && !is_none();
}

int64_t Value::integer() const {
  if (const bool* b = std::get_if<bool>(&v_)) return *b ? 1 : 0;
  return std::get<int64_t>(v_);
}

double Value::number() const {
  if (const double* d = std::get_if<double>(&v_)) return *d;
  return static_cast<double>(integer());
}

std::string Value::TypeName() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (text() != nullptr) return "str";
  if (const List* l = list()) return l->tuple ? "tuple" : "list";
  if (dict() != nullptr) return "dict";
  if (ns() != nullptr) return "Namespace";
  return loop() != nullptr ? "LoopContext" : "function";
}

std::string Value::UndefinedMessage() const {
  const Undefined* u = std::get_if<Undefined>(&v_);
  return u != nullptr && u->name != nullptr ? *u->name : "an undefined value";
}

bool Dict::IndexKey(const Value& key, std::string* out) {
  if (const Text* text = key.text()) {
    *out = text->bytes();
    return true;
  }
  if (!key.is_integral()) return false;
  *out = absl::StrCat(absl::string_view("\0", 1), key.integer());
  return true;
}

bool Dict::Set(const Value& key, Value value) {
  std::string name;
  if (!IndexKey(key, &name)) return false;
  depth_ = std::max(depth_, value.depth() + 1);
  const auto [it, added] = index_.emplace(std::move(name), items_.size());
  if (added) {
    items_.emplace_back(key, std::move(value));
  } else {
    items_[it->second].second = std::move(value);
  }
  return true;
}

const Value* Dict::Find(const Value& key) const {
  std::string name;
  if (!IndexKey(key, &name)) return nullptr;
  return Find(name);
}

const Value* Dict::Find(absl::string_view key) const {
  const auto it = index_.find(key);
  return it == index_.end() ? nullptr : &items_[it->second].second;
}

bool Equal(const Value& a, const Value& b, int64_t* steps) {
  if (--*steps <= 0) return false;
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (a.text() != nullptr && b.text() != nullptr) {
    *steps -= static_cast<int64_t>(std::min(a.text()->size(), b.text()->size()) / 256);
    return a.text()->bytes() == b.text()->bytes();
  }
  if (a.is_none() || a.is_undefined()) {
    return a.is_none() == b.is_none() && a.is_undefined() == b.is_undefined();
  }
  if (const List* x = a.list(), *y = b.list(); x != nullptr && y != nullptr) {
    if (x->items.size() != y->items.size() || x->tuple != y->tuple) return false;
    for (size_t i = 0; i < x->items.size(); ++i) {
      if (!Equal(x->items[i], y->items[i], steps)) return false;
    }
    return true;
  }
  if (const Dict* x = a.dict(), *y = b.dict(); x != nullptr && y != nullptr) {
    if (x->size() != y->size()) return false;
    for (const auto& [key, value] : x->items()) {
      const Value* other = y->Find(key);
      if (other == nullptr || !Equal(value, *other, steps)) return false;
    }
    return true;
  }
  return (a.ns() != nullptr && a.ns() == b.ns()) ||
         (a.callable() != nullptr && a.callable() == b.callable()) ||
         (a.loop() != nullptr && a.loop() == b.loop());
}

absl::StatusOr<bool> Less(const Value& a, const Value& b, int64_t* steps) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.integer() < b.integer();
    return a.number() < b.number();
  }
  // UTF-8 sorts as code points do.
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->bytes() < b.text()->bytes();
  if (const List* x = a.list(), *y = b.list();
      x != nullptr && y != nullptr && x->tuple == y->tuple) {
    for (size_t i = 0; i < x->items.size() && i < y->items.size(); ++i) {
      if (Equal(x->items[i], y->items[i], steps)) continue;
      return Less(x->items[i], y->items[i], steps);
    }
    return x->items.size() < y->items.size();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no order between ", a.TypeName(), " and ", b.TypeName()));
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char digits[64];
  const auto end =
      std::to_chars(digits, digits + sizeof(digits), value, std::chars_format::scientific);
  const std::string text(digits, end.ptr);
  const int exponent = std::stoi(text.substr(text.find('e') + 1));
  if (exponent < -4 || exponent >= 16) return text;
  char fixed[400];
  const auto fixed_end =
      std::to_chars(fixed, fixed + sizeof(fixed), value, std::chars_format::fixed);
  std::string out(fixed, fixed_end.ptr);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

}  // namespace millrace::jinja
