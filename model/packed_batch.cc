#include "model/packed_batch.h"

#include "absl/strings/str_cat.h"

namespace millrace {

absl::Status ValidatePackedBatch(const PackedBatch& batch, int64_t vocab_size) {
  const int64_t tokens = static_cast<int64_t>(batch.token_ids.size());
  if (tokens == 0) return absl::InvalidArgumentError("packed batch has no tokens");
  if (static_cast<int64_t>(batch.positions.size()) != tokens) {
    return absl::InvalidArgumentError(absl::StrCat("packed batch has ", tokens, " tokens but ",
                                                   batch.positions.size(), " positions"));
  }
  for (int64_t t = 0; t < tokens; ++t) {
    if (batch.token_ids[t] < 0 || batch.token_ids[t] >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat("token ", t, " of the packed batch is ",
                                                     batch.token_ids[t], ", vocabulary size is ",
                                                     vocab_size));
    }
    if (batch.positions[t] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("position of packed token ", t, " is ", batch.positions[t]));
    }
  }
  int64_t at = 0;
  for (size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    if (segment.begin != at || segment.end <= segment.begin || segment.end > tokens) {
      return absl::InvalidArgumentError(absl::StrCat("segment ", s, " is ", segment.begin, "..",
                                                     segment.end, "; expected one that begins at ",
                                                     at, " and ends by ", tokens));
    }
    if (segment.prefix < -1 || segment.prefix >= static_cast<int64_t>(s)) {
      return absl::InvalidArgumentError(
          absl::StrCat("segment ", s, " names segment ", segment.prefix, " as its prefix"));
    }
    at = segment.end;
  }
  if (at != tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("segments cover ", at, " of ", tokens, " packed tokens"));
  }
  return absl::OkStatus();
}

}  // namespace millrace
