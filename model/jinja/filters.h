// What the files of filters share.
#ifndef MILLRACE_MODEL_JINJA_FILTERS_H_
#define MILLRACE_MODEL_JINJA_FILTERS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/jinja/builtins.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/value.h"

namespace millrace::jinja {

struct FilterCall {
  Interpreter* in;
  absl::string_view name;
  const Value& input;
  const Arguments& args;
  std::vector<const Value*> bound;  // by parameter
  // Null when it is not given.
  const Value* arg(size_t i) const { return i < bound.size() ? bound[i] : nullptr; }
};

struct FilterEntry {
  absl::string_view name;
  std::vector<absl::string_view> parameters;
  absl::StatusOr<Value> (*apply)(FilterCall& call);
  bool any_arguments = false;  // it binds them itself
};

absl::Span<const FilterEntry> TextFilters();
absl::Span<const FilterEntry> SequenceFilters();

// object.a.b for the path "a.b"; the object itself when there is no path. `otherwise` (may be null)
// stands for every part that is undefined.
absl::StatusOr<Value> AttributePath(Interpreter* in, const Value& object, const Value* path,
                                    const Value* otherwise = nullptr);

}  // namespace millrace::jinja

#endif  // MILLRACE_MODEL_JINJA_FILTERS_H_
