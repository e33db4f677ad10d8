// Filters, tests, methods and functions that templates may use.
#ifndef MILLRACE_MODEL_JINJA_BUILTINS_H_
#define MILLRACE_MODEL_JINJA_BUILTINS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/jinja/value.h"

namespace millrace::jinja {

bool IsFilter(absl::string_view name);
bool IsTest(absl::string_view name);
// A function of Jinja that is not there.
bool IsUnsupportedGlobal(absl::string_view name);

// `name` is one of IsFilter. args.positional does not hold the input.
absl::StatusOr<Value> ApplyFilter(Interpreter* in, absl::string_view name, const Value& input,
                                  const Arguments& args);
absl::StatusOr<bool> ApplyTest(Interpreter* in, absl::string_view name, const Value& input,
                               const Arguments& args);

// Whether object.name is a method (of a string, list or dict).
bool HasMethod(const Value& object, absl::string_view name);
absl::StatusOr<Value> CallMethod(Interpreter* in, const Value& object, absl::string_view name,
                                 const Arguments& args);

// raise_exception, range, namespace, dict, strftime_now; undefined for other names.
Value GlobalFunction(absl::string_view name);

// The arguments of a call by parameter: missing ones are null. INVALID_ARGUMENT for too many,
// unknown or doubled ones. `what` is named.
absl::StatusOr<std::vector<const Value*>> Bind(absl::string_view what, const Arguments& args,
                                               const std::vector<absl::string_view>& parameters);

}  // namespace millrace::jinja

#endif  // MILLRACE_MODEL_JINJA_BUILTINS_H_
