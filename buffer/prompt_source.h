// Which problem the next group gets, and its seed. Both are functions of (seed, position), so the
// only state is the position, which the store keeps. Plain code: no lock, clock or I/O.
#ifndef MILLRACE_BUFFER_PROMPT_SOURCE_H_
#define MILLRACE_BUFFER_PROMPT_SOURCE_H_

#include <cstdint>

namespace millrace {

// The mixing function of Steele, Lea and Flood, "Fast splittable pseudorandom number generators"
// (2014).
uint64_t SplitMix64(uint64_t x);

// Seed of a group; sample i derives its own stream from (seed, i).
uint64_t GroupSeed(uint64_t run_seed, uint64_t group_id);

class PromptSource {
 public:
  // `problems`: size of the train split. 0 = the task makes problems without end, and position p is
  // problem p. Otherwise each epoch of `problems` positions is a permutation of its own.
  PromptSource(uint64_t run_seed, uint64_t problems) : seed_(run_seed), problems_(problems) {}
  uint64_t ProblemAt(uint64_t position) const;

 private:
  uint64_t seed_;
  uint64_t problems_;
};

}  // namespace millrace

#endif  // MILLRACE_BUFFER_PROMPT_SOURCE_H_
