// Staleness: how many updates lie between the weights that sampled a token and the weights that are
// about to be trained. Plain arithmetic: no lock, clock or I/O.
//
// Normally one update is one version, and staleness is the difference of the versions. A learner
// that restarts from the checkpoint of step s publishes the old weights under a new, higher
// version; counting versions would then make good groups look stale. So the lineage remembers how
// many updates each version contains: `first` has `step` of them, and each later version one more.
#ifndef MILLRACE_BUFFER_STALENESS_H_
#define MILLRACE_BUFFER_STALENESS_H_

#include <cstdint>
#include <vector>

namespace millrace {

class Lineage {
 public:
  struct Branch {
    int64_t first = 0;  // version the learner published when it (re)started
    int64_t step = 0;   // updates contained in it
  };

  // `first` must be above all versions added before.
  void Add(Branch branch) { branches_.push_back(branch); }
  // Updates contained in `version`; versions from before the first branch contain none.
  int64_t Updates(int64_t version) const;
  // Never negative: weights of an abandoned branch that were ahead count as 0.
  int64_t Staleness(int64_t trained_version, int64_t sampled_version) const;
  // First version of the newest branch; 0 when there is none.
  int64_t newest_first() const { return branches_.empty() ? 0 : branches_.back().first; }
  const std::vector<Branch>& branches() const { return branches_; }

 private:
  std::vector<Branch> branches_;  // ascending by first
};

}  // namespace millrace

#endif  // MILLRACE_BUFFER_STALENESS_H_
