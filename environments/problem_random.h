// Random numbers that make a problem: a pure function of the words they start from, the same on
// every platform (std distributions are not). splitmix64 (Steele, Lea, Flood 2014).
#ifndef MILLRACE_ENVIRONMENTS_PROBLEM_RANDOM_H_
#define MILLRACE_ENVIRONMENTS_PROBLEM_RANDOM_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace millrace {

// Avalanche of one word.
inline uint64_t MixWord(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

class ProblemRandom {
 public:
  ProblemRandom(uint64_t seed, uint64_t stream, uint64_t id)
      : state_(MixWord(MixWord(MixWord(seed) ^ stream) ^ id)) {}
  uint64_t Next() { return MixWord(state_ += 0x9e3779b97f4a7c15ull); }
  // 0 .. n-1; n is far below 2^32, so the bias is below 2^-32.
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  int64_t Between(int64_t low, int64_t high) { return low + Below(high - low + 1); }

 private:
  uint64_t state_;
};

// FNV-1a, mixed.
inline uint64_t HashText(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
  return MixWord(hash);
}

// Whether a problem with this text is held out (one in eight). Depends on the text alone, so no
// seed can bring a held-out problem into training.
inline bool IsHeldOut(absl::string_view text) { return HashText(text) % 8 == 0; }

}  // namespace millrace

#endif  // MILLRACE_ENVIRONMENTS_PROBLEM_RANDOM_H_
