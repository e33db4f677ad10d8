#include "buffer/staleness.h"

#include <algorithm>

namespace millrace {

int64_t Lineage::Updates(int64_t version) const {
  for (auto it = branches_.rbegin(); it != branches_.rend(); ++it) {
    if (version >= it->first) return it->step + (version - it->first);
  }
  return 0;
}

int64_t Lineage::Staleness(int64_t trained_version, int64_t sampled_version) const {
  return std::max<int64_t>(0, Updates(trained_version) - Updates(sampled_version));
}

}  // namespace millrace
