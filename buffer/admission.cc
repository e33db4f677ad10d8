#include "buffer/admission.h"

#include <algorithm>
#include <cmath>

namespace millrace {
namespace {

// A higher expected drop rate than this is treated as this one, so that the division stays finite.
constexpr double kMaxDropRate = 0.99;

}  // namespace

int64_t AdmissionWindow(const AdmissionConfig& config, const InFlight& in_flight,
                        double drop_rate) {
  const int64_t base = (config.version_lead + 1) * config.groups_per_step;
  const int64_t survived = in_flight.ready + in_flight.assigned;
  if (!config.oversample || config.version_lead == 0 || survived >= base) return base;
  const double survival = 1 - std::clamp(drop_rate, 0.0, kMaxDropRate);
  // The slack keeps 8 / 1 from becoming 9 by rounding.
  const double needed = std::ceil(static_cast<double>(base - survived) / survival - 1e-9);
  const double widest =
      static_cast<double>(base) + std::floor(config.max_oversample * config.groups_per_step);
  return static_cast<int64_t>(std::min(survived + needed, widest));
}

bool MayAdmit(const AdmissionConfig& config, const InFlight& in_flight, double drop_rate) {
  return in_flight.total() < AdmissionWindow(config, in_flight, drop_rate);
}

}  // namespace millrace
