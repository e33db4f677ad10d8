#include "environments/pattern.h"

#include <algorithm>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

constexpr uint32_t kMatchLimit = 1000000;

PCRE2_SPTR Bytes(absl::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct Pattern::Impl {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  uint32_t groups = 0;

  ~Impl() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }

  bool Find(absl::string_view text, size_t from, uint32_t flags, Match* match) const {
    pcre2_match_data* data = pcre2_match_data_create_from_pattern(code, nullptr);
    const int count = pcre2_match(code, Bytes(text), text.size(), from, flags, data, context);
    if (count > 0) {
      const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data);
      match->begin = ends[0];
      match->end = std::max(ends[0], ends[1]);  // \K can put the begin behind the end
      match->groups.assign(groups + 1, absl::string_view());
      for (int i = 0; i < count; ++i) {
        if (ends[2 * i] == PCRE2_UNSET || ends[2 * i + 1] < ends[2 * i]) continue;
        match->groups[static_cast<size_t>(i)] =
            text.substr(ends[2 * i], ends[2 * i + 1] - ends[2 * i]);
      }
    }
    pcre2_match_data_free(data);
    return count > 0;
  }
};

Pattern::Pattern(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Pattern::~Pattern() = default;

absl::StatusOr<std::unique_ptr<Pattern>> Pattern::Compile(absl::string_view expression) {
  auto impl = std::make_unique<Impl>();
  int error = 0;
  PCRE2_SIZE offset = 0;
  impl->code = pcre2_compile(Bytes(expression), expression.size(),
                             PCRE2_UTF | PCRE2_MATCH_INVALID_UTF, &error, &offset, nullptr);
  if (impl->code == nullptr) {
    unsigned char message[256] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    return absl::InvalidArgumentError(absl::StrCat("regular expression \"", expression, "\", byte ",
                                                   offset, ": ",
                                                   reinterpret_cast<const char*>(message)));
  }
  impl->context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(impl->context, kMatchLimit);
  pcre2_pattern_info(impl->code, PCRE2_INFO_CAPTURECOUNT, &impl->groups);
  return std::unique_ptr<Pattern>(new Pattern(std::move(impl)));
}

bool Pattern::Find(absl::string_view text, size_t from, Match* match) const {
  return from <= text.size() && impl_->Find(text, from, 0, match);
}

bool Pattern::FindLast(absl::string_view text, Match* match) const {
  bool found = false;
  Match next;
  for (size_t from = 0; Find(text, from, &next);) {
    from = std::max(next.end, next.begin + 1);
    *match = next;
    found = true;
  }
  return found;
}

bool Pattern::MatchesAll(absl::string_view text, Match* match) const {
  return impl_->Find(text, 0, PCRE2_ANCHORED | PCRE2_ENDANCHORED, match);
}

std::string Pattern::Replace(absl::string_view text, absl::string_view by) const {
  std::string result;
  size_t from = 0;
  Match match;
  while (Find(text, from, &match) && match.end > from) {
    absl::StrAppend(&result, text.substr(from, match.begin - from), by);
    from = match.end;
  }
  absl::StrAppend(&result, text.substr(from));
  return result;
}

int Pattern::groups() const { return static_cast<int>(impl_->groups); }

}  // namespace millrace
