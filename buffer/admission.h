// How many groups may be in flight. Plain arithmetic: no lock, clock or I/O.
//
// A group counts from its first lease until it is dropped, or until the weights that its update
// went into are published ("settled"). With lead L and B groups a step, at most (L + 1) * B groups
// count, so a group that is leased at version v is trained on top of v + L at the latest.
//
// Over-sampling: of the groups still leased only a share 1 - d is expected to survive the filters,
// so the window for them is divided by that share. Groups that are ready or assigned have survived
// already and count in full, hence the window closes as they arrive. With L = 0 the window is never
// widened: a surplus group could only be thrown away at the next version.
#ifndef MILLRACE_BUFFER_ADMISSION_H_
#define MILLRACE_BUFFER_ADMISSION_H_

#include <cstdint>

namespace millrace {

struct AdmissionConfig {
  int64_t groups_per_step = 8;  // B, > 0
  int64_t version_lead = 1;     // L, >= 0
  bool oversample = true;
  double max_oversample = 4;  // the window grows by at most this times groups_per_step
};

struct InFlight {
  int64_t leased = 0;    // being produced, or waiting to be leased again
  int64_t ready = 0;     // complete, waiting for a batch
  int64_t assigned = 0;  // in a batch whose update is not published yet
  int64_t total() const { return leased + ready + assigned; }
};

// Largest number of groups that may be in flight, given what is and the expected drop rate (0..1).
int64_t AdmissionWindow(const AdmissionConfig& config, const InFlight& in_flight, double drop_rate);

// True when one more group may be started.
bool MayAdmit(const AdmissionConfig& config, const InFlight& in_flight, double drop_rate);

// Expected share of groups that the filters drop: an exponential average over finished groups.
class DropRate {
 public:
  // `weight` of the newest outcome, in (0, 1].
  explicit DropRate(double weight = 0.05, double initial = 0) : weight_(weight), rate_(initial) {}
  void Observe(bool dropped) { rate_ += weight_ * ((dropped ? 1.0 : 0.0) - rate_); }
  double rate() const { return rate_; }

 private:
  double weight_;
  double rate_;
};

}  // namespace millrace

#endif  // MILLRACE_BUFFER_ADMISSION_H_
