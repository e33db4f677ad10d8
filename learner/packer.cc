#include "learner/packer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

// What of an input takes part in the forward: the prompt [0, prompt), the rest [prompt, end).
struct Extent {
  int64_t prompt = 0;
  int64_t end = 0;    // the last target's index: that token itself is not needed
  int64_t first = 0;  // index of the first target
};

// False when there is no target.
bool FindExtent(const PackInput& input, Extent* extent) {
  const auto& mask = input.loss_mask;
  const auto length = static_cast<int64_t>(mask.size());
  extent->prompt = std::find(mask.begin(), mask.end(), 1) - mask.begin();
  extent->first = std::max<int64_t>(extent->prompt, 1);
  int64_t last = length - 1;
  while (last >= extent->first && mask[last] == 0) --last;
  extent->end = last;
  return last >= extent->first;
}

class Builder {
 public:
  explicit Builder(int64_t budget) : budget_(budget) {}

  void Add(int32_t index, const PackInput& input, const Extent& extent) {
    const auto prompt = input.token_ids.subspan(0, extent.prompt);
    const int64_t own = extent.end - extent.prompt;
    int64_t segment = FindPrompt(input.group, prompt);
    const int64_t cost = own + (segment < 0 ? extent.prompt : 0);
    if (!current_.batch.token_ids.empty() && Tokens() + cost > budget_) {
      Flush();
      segment = -1;
    }
    if (segment < 0 && !prompt.empty()) {
      segment = AddSegment(prompt, 0, -1);
      prompts_.push_back({input.group, prompt, segment});
    }
    const int64_t begin = Tokens();
    if (own > 0) AddSegment(input.token_ids.subspan(extent.prompt, own), extent.prompt, segment);
    for (int64_t t = extent.first; t <= extent.end; ++t) {
      if (input.loss_mask[t] == 0) continue;
      const int64_t before = t - 1;  // the token whose row predicts t
      current_.rows.push_back(before < extent.prompt
                                  ? current_.batch.segments[segment].begin + before
                                  : begin + before - extent.prompt);
      current_.targets.push_back(input.token_ids[t]);
      current_.trajectory.push_back(index);
      current_.token.push_back(static_cast<int32_t>(t));
    }
  }

  std::vector<MicroBatch> Finish() {
    Flush();
    return std::move(done_);
  }

 private:
  struct Prompt {
    uint64_t group;
    absl::Span<const int32_t> tokens;
    int64_t segment;
  };

  int64_t Tokens() const { return static_cast<int64_t>(current_.batch.token_ids.size()); }

  int64_t FindPrompt(uint64_t group, absl::Span<const int32_t> tokens) const {
    // Members of a group come one after another, so the newest prompts are looked at first.
    for (auto it = prompts_.rbegin(); it != prompts_.rend() && it->group == group; ++it) {
      if (it->tokens == tokens) return it->segment;
    }
    return -1;
  }

  int64_t AddSegment(absl::Span<const int32_t> tokens, int64_t position, int64_t prefix) {
    PackedBatch& batch = current_.batch;
    Segment segment;
    segment.begin = Tokens();
    batch.token_ids.insert(batch.token_ids.end(), tokens.begin(), tokens.end());
    for (size_t i = 0; i < tokens.size(); ++i) {
      batch.positions.push_back(static_cast<int32_t>(position + static_cast<int64_t>(i)));
    }
    segment.end = Tokens();
    segment.prefix = prefix;
    batch.segments.push_back(segment);
    return static_cast<int64_t>(batch.segments.size()) - 1;
  }

  void Flush() {
    if (!current_.rows.empty()) done_.push_back(std::move(current_));
    current_ = MicroBatch();
    prompts_.clear();
  }

  const int64_t budget_;
  MicroBatch current_;
  std::vector<Prompt> prompts_;
  std::vector<MicroBatch> done_;
};

}  // namespace

int64_t CountTargets(const PackInput& input) {
  int64_t count = 0;
  for (size_t t = 1; t < input.loss_mask.size(); ++t) count += input.loss_mask[t] != 0;
  return count;
}

absl::StatusOr<std::vector<MicroBatch>> PackTrajectories(absl::Span<const PackInput> inputs,
                                                         int64_t token_budget) {
  Builder builder(token_budget);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const PackInput& input = inputs[i];
    if (input.token_ids.size() != input.loss_mask.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "packer: trajectory ", i, " of group ", input.group, " has ", input.token_ids.size(),
          " tokens and a loss mask of length ", input.loss_mask.size()));
    }
    Extent extent;
    if (FindExtent(input, &extent)) builder.Add(static_cast<int32_t>(i), input, extent);
  }
  return builder.Finish();
}

}  // namespace millrace
