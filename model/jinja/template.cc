#include "model/jinja/template.h"

#include "common/status_macros.h"
#include "model/byte_level.h"
#include "model/jinja/interpreter.h"
#include "model/jinja/parser.h"

namespace millrace::jinja {

struct Template::Impl {
  Body body;
};

Template::Template(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Template::~Template() = default;

absl::StatusOr<std::shared_ptr<const Template>> Template::Parse(absl::string_view source) {
  auto impl = std::make_unique<Impl>();
  MR_ASSIGN_OR_RETURN(impl->body, ParseTemplate(ReplaceInvalidUtf8(source)));
  return std::shared_ptr<const Template>(new Template(std::move(impl)));
}

absl::StatusOr<Text> Template::Render(const Variables& variables,
                                      const RenderOptions& options) const {
  return Interpreter(variables, options).Run(impl_->body);
}

}  // namespace millrace::jinja
