#include "buffer/prompt_source.h"

#include <bit>

namespace millrace {
namespace {

// A four-round Feistel network over 2 * `half_bits` bits: a bijection for any round function.
uint64_t Feistel(uint64_t x, int half_bits, uint64_t key) {
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t left = x >> half_bits;
  uint64_t right = x & mask;
  for (uint64_t round = 0; round < 4; ++round) {
    const uint64_t mixed = SplitMix64(key ^ SplitMix64(right + (round << 32)));
    const uint64_t next = left ^ (mixed & mask);
    left = right;
    right = next;
  }
  return (left << half_bits) | right;
}

}  // namespace

uint64_t SplitMix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

uint64_t GroupSeed(uint64_t run_seed, uint64_t group_id) {
  return SplitMix64(SplitMix64(run_seed) + group_id);
}

uint64_t PromptSource::ProblemAt(uint64_t position) const {
  if (problems_ == 0) return position;
  const uint64_t epoch = position / problems_;
  const uint64_t key = SplitMix64(seed_ + SplitMix64(epoch));
  const int half_bits = (std::bit_width(problems_ - 1) + 1) / 2;
  uint64_t problem = position % problems_;
  if (half_bits == 0) return problem;
  // The network permutes a power of four at least as large as the split; walking along its cycle
  // until a value is inside gives a permutation of the split.
  do {
    problem = Feistel(problem, half_bits, key);
  } while (problem >= problems_);
  return problem;
}

}  // namespace millrace
