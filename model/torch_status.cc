#include "model/torch_status.h"

#include <c10/util/Exception.h>

#include <new>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace millrace {

absl::Status StatusFromException(absl::string_view what, const std::exception& e) {
  std::string text = e.what();
  if (const auto* torch = dynamic_cast<const c10::Error*>(&e))
    text = torch->what_without_backtrace();
  text.resize(std::min(text.size(), text.find('\n')));
  const std::string message = absl::StrCat(what, ": ", text);
  const bool memory = dynamic_cast<const std::bad_alloc*>(&e) != nullptr ||
                      dynamic_cast<const c10::OutOfMemoryError*>(&e) != nullptr ||
                      absl::StrContains(text, "not enough memory") ||
                      absl::StrContains(text, "can't allocate memory");
  return memory ? absl::ResourceExhaustedError(message) : absl::InternalError(message);
}

}  // namespace millrace
