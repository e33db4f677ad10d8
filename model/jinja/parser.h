// Parses a template. What is not supported (a tag, filter, test, method) is found here, not while
// rendering, as far as it can be.
#ifndef MILLRACE_MODEL_JINJA_PARSER_H_
#define MILLRACE_MODEL_JINJA_PARSER_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/jinja/ast.h"

namespace millrace::jinja {

// INVALID_ARGUMENT or UNIMPLEMENTED, with the line; RESOURCE_EXHAUSTED for a template nested too
// deeply.
absl::StatusOr<Body> ParseTemplate(absl::string_view source);

}  // namespace millrace::jinja

#endif  // MILLRACE_MODEL_JINJA_PARSER_H_
