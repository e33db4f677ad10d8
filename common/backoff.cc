#include "common/backoff.h"

#include <algorithm>

namespace millrace {

absl::Duration Backoff::Next() {
  absl::Duration nominal = options_.initial;
  for (int i = 0; i < failures_ && nominal < options_.max; ++i) nominal *= options_.multiplier;
  nominal = std::min(nominal, options_.max);
  ++failures_;
  const double unit = static_cast<double>(random_() >> 11) * 0x1.0p-53;  // [0, 1)
  return nominal * (1 - options_.jitter * unit);
}

}  // namespace millrace
