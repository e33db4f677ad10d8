// str(), repr() and json.dumps() of values.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "model/jinja/value.h"

namespace millrace::jinja {
namespace {

constexpr int kMostNesting = 250;

absl::Status TooLarge(size_t most) {
  return absl::ResourceExhaustedError(
      absl::StrCat("a printed value is larger than ", most, " bytes"));
}

absl::Status TooDeep() {
  return absl::ResourceExhaustedError(
      absl::StrCat("a value nested deeper than ", kMostNesting, " is printed"));
}

// repr() of a string: single quotes, unless it holds some and no double ones.
void ReprText(const Text& text, Tag around, Text* out) {
  const std::string& bytes = text.bytes();
  const bool single = bytes.find('\'') == std::string::npos || bytes.find('"') != std::string::npos;
  const char quote = single ? '\'' : '"';
  out->Append(absl::string_view(&quote, 1), around);
  out->Append(text.MapCharacters([&](absl::string_view c) -> std::string {
    const uint32_t code = CodeAt(c, 0);
    if (c == "\\" || (c.size() == 1 && c[0] == quote)) return absl::StrCat("\\", c);
    if (c == "\n") return "\\n";
    if (c == "\r") return "\\r";
    if (c == "\t") return "\\t";
    if (code < 0x20 || (code >= 0x7f && code <= 0xa0) || code == 0xad) {
      return absl::StrFormat("\\x%02x", code);
    }
    return std::string(c);
  }));
  out->Append(absl::string_view(&quote, 1), around);
}

struct Printer {
  size_t most;

  absl::Status Print(const Value& value, bool repr, int depth, Tag tag, Text* out) const {
    if (out->size() > most) return TooLarge(most);
    if (depth > kMostNesting) return TooDeep();
    if (const Text* text = value.text()) {
      if (repr) {
        ReprText(*text, text->empty() ? tag : text->TagAt(0), out);
      } else {
        out->Append(*text);
      }
      return absl::OkStatus();
    }
    if (const List* list = value.list()) return PrintList(*list, depth, out);
    if (const Dict* dict = value.dict()) return PrintDict(*dict, depth, out);
    out->Append(Scalar(value, repr), tag);
    return absl::OkStatus();
  }

  static std::string Scalar(const Value& value, bool repr) {
    if (value.is_undefined()) return repr ? "Undefined" : "";
    if (value.is_none()) return "None";
    if (value.is_bool()) return value.truth() ? "True" : "False";
    if (value.is_int()) return absl::StrCat(value.integer());
    if (value.is_float()) return FloatText(value.number());
    return absl::StrCat("<", value.TypeName(), ">");
  }

  absl::Status PrintList(const List& list, int depth, Text* out) const {
    const Tag tag{list.origin, false};
    out->Append(list.tuple ? "(" : "[", tag);
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out->Append(", ", tag);
      MR_RETURN_IF_ERROR(Print(list.items[i], true, depth + 1, tag, out));
    }
    if (list.tuple && list.items.size() == 1) out->Append(",", tag);
    out->Append(list.tuple ? ")" : "]", tag);
    return absl::OkStatus();
  }

  absl::Status PrintDict(const Dict& dict, int depth, Text* out) const {
    const Tag tag{dict.origin(), false};
    out->Append("{", tag);
    bool first = true;
    for (const auto& [key, item] : dict.items()) {
      if (!first) out->Append(", ", tag);
      first = false;
      MR_RETURN_IF_ERROR(Print(key, true, depth + 1, tag, out));
      out->Append(": ", tag);
      MR_RETURN_IF_ERROR(Print(item, true, depth + 1, tag, out));
    }
    out->Append("}", tag);
    return absl::OkStatus();
  }
};

class JsonPrinter {
 public:
  explicit JsonPrinter(const JsonOptions& options) : options_(options) {}

  absl::Status Print(const Value& value, int depth, Tag tag) {
    if (out_.size() > options_.most) return TooLarge(options_.most);
    if (depth > kMostNesting) return TooDeep();
    if (const Text* text = value.text()) {
      String(*text, text->empty() ? tag : text->TagAt(0));
    } else if (const List* list = value.list()) {
      return PrintList(*list, depth);
    } else if (const Dict* dict = value.dict()) {
      return PrintDict(*dict, depth);
    } else if (value.is_none()) {
      out_.Append("null", tag);
    } else if (value.is_bool()) {
      out_.Append(value.truth() ? "true" : "false", tag);
    } else if (value.is_int()) {
      out_.Append(absl::StrCat(value.integer()), tag);
    } else if (value.is_float()) {
      out_.Append(Number(value.number()), tag);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(value.is_undefined() ? value.UndefinedMessage() : value.TypeName(),
                       " can't be written as JSON"));
    }
    return absl::OkStatus();
  }
  Text Take() { return std::move(out_); }

 private:
  static std::string Number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
    return FloatText(value);
  }

  void String(const Text& text, Tag around) {
    out_.Append("\"", around);
    out_.Append(text.MapCharacters([this](absl::string_view c) { return Escaped(c); }));
    out_.Append("\"", around);
  }

  std::string Escaped(absl::string_view c) const {
    const uint32_t code = CodeAt(c, 0);
    switch (code) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\f':
        return "\\f";
      case '\b':
        return "\\b";
      default:
        break;
    }
    if (code < 0x20) return absl::StrFormat("\\u%04x", code);
    if (!options_.ensure_ascii || code < 0x7f) return std::string(c);
    if (code < 0x10000) return absl::StrFormat("\\u%04x", code);
    const uint32_t rest = code - 0x10000;
    return absl::StrFormat("\\u%04x\\u%04x", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
  }

  // Before item `i`.
  void Separate(size_t i, int depth, Tag tag) {
    if (i > 0) out_.Append(options_.item_separator, tag);
    if (options_.pretty) Line(depth + 1, tag);
  }
  void Line(int depth, Tag tag) {
    std::string line = "\n";
    for (int i = 0; i < depth; ++i) line += options_.indent;
    out_.Append(line, tag);
  }

  absl::Status PrintList(const List& list, int depth) {
    const Tag tag{list.origin, false};
    out_.Append("[", tag);
    for (size_t i = 0; i < list.items.size(); ++i) {
      Separate(i, depth, tag);
      MR_RETURN_IF_ERROR(Print(list.items[i], depth + 1, tag));
    }
    if (options_.pretty && !list.items.empty()) Line(depth, tag);
    out_.Append("]", tag);
    return absl::OkStatus();
  }

  absl::Status PrintDict(const Dict& dict, int depth) {
    const Tag tag{dict.origin(), false};
    std::vector<std::pair<Value, Value>> items = dict.items();
    if (options_.sort_keys) {
      std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) {
        int64_t steps = 8;  // keys are scalars
        const auto less = Less(a.first, b.first, &steps);
        return less.ok() && *less;
      });
    }
    out_.Append("{", tag);
    for (size_t i = 0; i < items.size(); ++i) {
      Separate(i, depth, tag);
      if (const Text* key = items[i].first.text()) {
        String(*key, tag);
      } else {
        out_.Append(absl::StrCat("\"", items[i].first.integer(), "\""), tag);
      }
      out_.Append(options_.key_separator, tag);
      MR_RETURN_IF_ERROR(Print(items[i].second, depth + 1, tag));
    }
    if (options_.pretty && !items.empty()) Line(depth, tag);
    out_.Append("}", tag);
    return absl::OkStatus();
  }

  const JsonOptions& options_;
  Text out_;
};

}  // namespace

absl::StatusOr<Text> Str(const Value& value, size_t most) {
  Text out;
  MR_RETURN_IF_ERROR(Printer{most}.Print(value, false, 0, Tag(), &out));
  return out;
}

absl::StatusOr<Text> ToJson(const Value& value, const JsonOptions& options) {
  JsonPrinter printer(options);
  MR_RETURN_IF_ERROR(printer.Print(value, 0, Tag()));
  return printer.Take();
}

}  // namespace millrace::jinja
