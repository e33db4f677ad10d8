#include "absl/strings/match.h"
#include "model/tokenizer.h"

namespace millrace {

std::string StreamDecoder::Push(int32_t id) {
  constexpr absl::string_view kReplacement = "\xef\xbf\xbd";
  window_.push_back(id);
  std::string text = tokenizer_->Decode(window_, keep_special_);
  if (!absl::StartsWith(text, given_)) {
    // A new byte token has spoilt the run of byte tokens that was whole before, whose text was
    // given out: go on with the tokens behind it.
    window_.erase(window_.begin(), window_.begin() + static_cast<ptrdiff_t>(given_tokens_));
    given_tokens_ = 0;
    given_.clear();
    text = tokenizer_->Decode(window_, keep_special_);
  }
  if (text.size() <= given_.size() || absl::EndsWith(text, kReplacement)) return "";
  std::string news = text.substr(given_.size());
  window_.erase(window_.begin(), window_.begin() + static_cast<ptrdiff_t>(given_tokens_));
  given_tokens_ = window_.size();
  given_ = tokenizer_->Decode(window_, keep_special_);
  return news;
}

std::string StreamDecoder::Flush() {
  const std::string text = tokenizer_->Decode(window_, keep_special_);
  std::string news = text.substr(given_.size());
  window_.clear();
  given_tokens_ = 0;
  given_.clear();
  return news;
}

}  // namespace millrace
