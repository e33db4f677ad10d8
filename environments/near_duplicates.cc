#include "environments/near_duplicates.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "absl/strings/ascii.h"
#include "environments/problem_random.h"

namespace millrace {
namespace {

constexpr size_t kShingleWords = 3;

bool IsWordByte(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 128 || absl::ascii_isalnum(byte);
}

}  // namespace

std::vector<std::string> NormalisedWords(absl::string_view text) {
  std::vector<std::string> words;
  bool in_word = false;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isspace(byte)) {
      in_word = false;
    } else if (IsWordByte(c) && in_word) {
      words.back() += absl::ascii_tolower(byte);
    } else {
      words.emplace_back(1, absl::ascii_tolower(byte));
      in_word = IsWordByte(c);
    }
  }
  return words;
}

std::vector<uint64_t> Shingles(absl::string_view text) {
  const std::vector<std::string> words = NormalisedWords(text);
  std::vector<uint64_t> set;
  if (words.empty()) return set;
  const size_t length = std::min(kShingleWords, words.size());
  for (size_t i = 0; i + length <= words.size(); ++i) {
    uint64_t hash = length;
    for (size_t k = 0; k < length; ++k) hash = MixWord(hash ^ HashText(words[i + k])) + 1;
    set.push_back(hash);
  }
  std::sort(set.begin(), set.end());
  set.erase(std::unique(set.begin(), set.end()), set.end());
  return set;
}

double Jaccard(absl::Span<const uint64_t> a, absl::Span<const uint64_t> b) {
  size_t both = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i] == b[j]) {
      ++both;
      ++i;
      ++j;
    } else if (a[i] < b[j]) {
      ++i;
    } else {
      ++j;
    }
  }
  const size_t any = a.size() + b.size() - both;
  return any == 0 ? 0 : static_cast<double>(both) / static_cast<double>(any);
}

std::vector<std::pair<size_t, size_t>> NearDuplicatePairs(
    absl::Span<const std::vector<uint64_t>> sets, double threshold) {
  std::unordered_map<uint64_t, uint32_t> count;
  for (const std::vector<uint64_t>& set : sets) {
    for (const uint64_t shingle : set) ++count[shingle];
  }
  std::vector<std::pair<size_t, size_t>> pairs;
  std::unordered_map<uint64_t, std::vector<size_t>> index;  // shingle -> sets with it in front
  std::vector<size_t> last_seen(sets.size(), 0);            // j + 1 of the last comparison
  for (size_t j = 0; j < sets.size(); ++j) {
    std::vector<uint64_t> rarest(sets[j].begin(), sets[j].end());
    std::sort(rarest.begin(), rarest.end(), [&count](uint64_t a, uint64_t b) {
      const uint32_t count_a = count[a], count_b = count[b];
      return count_a != count_b ? count_a < count_b : a < b;
    });
    // Two sets that share t of the larger one's shingles share one of the first n - ceil(t n) + 1
    // of each, in any common order.
    const size_t n = rarest.size();
    const double least = std::ceil(threshold * static_cast<double>(n) - 1e-9);
    const size_t prefix = n == 0 ? 0 : n - std::min(n, static_cast<size_t>(least)) + 1;
    const size_t first_pair = pairs.size();
    for (size_t k = 0; k < std::min(prefix, n); ++k) {
      std::vector<size_t>& others = index[rarest[k]];
      for (const size_t i : others) {
        if (last_seen[i] == j + 1) continue;
        last_seen[i] = j + 1;
        if (Jaccard(sets[i], sets[j]) >= threshold) pairs.emplace_back(i, j);
      }
      others.push_back(j);
    }
    std::sort(pairs.begin() + static_cast<ptrdiff_t>(first_pair), pairs.end());
  }
  return pairs;
}

}  // namespace millrace
