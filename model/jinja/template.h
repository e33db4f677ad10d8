// Jinja templates as chat templates use them (the subset of Jinja 3 that `transformers` allows in
// its sandbox), written for this project. A template can neither hang nor exhaust memory: see
// Limits. What is not supported is an error that names it and its line.
#ifndef MILLRACE_MODEL_JINJA_TEMPLATE_H_
#define MILLRACE_MODEL_JINJA_TEMPLATE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "model/jinja/text.h"
#include "model/jinja/value.h"

namespace millrace::jinja {

// Of one rendering. RESOURCE_EXHAUSTED names the one that is hit.
struct Limits {
  int64_t steps = 2'000'000;             // expressions and statements
  size_t total_bytes = size_t{1} << 28;  // of all texts and lists made on the way, 256 MiB
  size_t most_text_bytes = 1 << 25;      // of the output and of one printed value, 32 MiB
  int depth = 400;                       // of statements, expressions and macro calls in each other
};

struct RenderOptions {
  Limits limits;
  absl::Time now = absl::UnixEpoch();  // what strftime_now() prints, in the local time zone
};

// By name.
using Variables = std::vector<std::pair<std::string, Value>>;

// Thread-safe (const) after Parse.
class Template {
 public:
  // UNIMPLEMENTED or INVALID_ARGUMENT, "line N: ...".
  static absl::StatusOr<std::shared_ptr<const Template>> Parse(absl::string_view source);
  ~Template();
  absl::StatusOr<Text> Render(const Variables& variables, const RenderOptions& options) const;

 private:
  struct Impl;
  explicit Template(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace millrace::jinja

#endif  // MILLRACE_MODEL_JINJA_TEMPLATE_H_
