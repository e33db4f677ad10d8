// In which order positions 0, 1, 2, ... go round several sources with weights. A pure function of
// the position, so every process that knows the weights knows which source an id belongs to.
// Thread-safe (const).
#ifndef MILLRACE_ENVIRONMENTS_WEIGHTED_ORDER_H_
#define MILLRACE_ENVIRONMENTS_WEIGHTED_ORDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace millrace {

// "name" or "name:weight", as lists of parts and files spell it.
struct WeightedName {
  std::string name;
  double weight = 1;
};
// INVALID_ARGUMENT when the name is empty or the weight is not above 0. A colon that no number
// follows is part of the name.
absl::StatusOr<WeightedName> ParseWeightedName(absl::string_view text);

class WeightedOrder {
 public:
  // Weights are above 0; at least one, at most 1000. Whole weights that add up to at most 1000 are
  // kept exactly in every period of that many positions; others to 1/1000, each at least that.
  explicit WeightedOrder(absl::Span<const double> weights);

  struct Slot {
    size_t source = 0;
    uint64_t ordinal = 0;  // how many positions before this one went to the same source
  };
  Slot At(uint64_t position) const;

 private:
  std::vector<Slot> period_;
  std::vector<uint64_t> counts_;  // positions of each source in a period
};

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_WEIGHTED_ORDER_H_
