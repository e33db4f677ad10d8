// Mutation driver for compilers without libFuzzer: no coverage feedback, so it stays near the seeds
// (up to a few edits away), where readers make their decisions.
//
//   PROGRAM [--runs=N] [--seconds=N] [--seed=N] [FILE...]     FILE: run these inputs and nothing
//   else
//
// The input of a crash is left in crash-<program> in the working folder.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/fuzz/fuzz_target.h"

namespace {

using millrace::testing::FuzzTarget;

constexpr size_t kMaxInput = 1 << 20;
constexpr unsigned kHangSeconds = 60;

std::string* current = nullptr;  // the input that runs now
char crash_path[256];

void SaveCurrent() {
  if (FILE* file = std::fopen(crash_path, "wb"); file != nullptr && current != nullptr) {
    std::fwrite(current->data(), 1, current->size(), file);
    std::fclose(file);
    std::fprintf(stderr, "fuzz: input of %zu bytes saved to %s\n", current->size(), crash_path);
  }
}

void OnSignal(int signal) {
  std::fprintf(stderr, "fuzz: signal %d\n", signal);
  SaveCurrent();
  std::_Exit(1);
}

}  // namespace

// Weak: defined where a sanitizer is linked.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

class Mutator {
 public:
  Mutator(const FuzzTarget& target, uint64_t seed) : target_(target), random_(seed) {}

  std::string Next() {
    std::string input = Pick(target_.seeds);
    const size_t edits = size_t{1} << Below(4);
    for (size_t i = 0; i < edits; ++i) Edit(&input);
    if (input.size() > kMaxInput) input.resize(kMaxInput);
    return input;
  }

 private:
  size_t Below(size_t n) { return n == 0 ? 0 : random_() % n; }
  const std::string& Pick(const std::vector<std::string>& list) { return list[Below(list.size())]; }

  void Edit(std::string* s) {
    const size_t at = Below(s->size() + 1),
                 length = Below(std::min<size_t>(s->size() - at, 64) + 1);
    switch (Below(9)) {
      case 0:
        if (at < s->size()) (*s)[at] = static_cast<char>((*s)[at] ^ (1 << Below(8)));
        return;
      case 1:
        if (at < s->size()) (*s)[at] = static_cast<char>(random_());
        return;
      case 2:
        s->insert(at, 1, static_cast<char>(random_()));
        return;
      case 3:
        s->erase(at, length);
        return;
      case 4:  // a stretch again
        s->insert(at, s->substr(Below(s->size() + 1), length));
        return;
      case 5:
        if (!target_.dictionary.empty()) s->insert(at, Pick(target_.dictionary));
        return;
      case 6:
        return Number(s, at);
      case 7:  // the head of one input and the tail of another
        *s = s->substr(0, at) + Tail(Pick(target_.seeds));
        return;
      default:
        s->resize(at);
    }
  }
  std::string Tail(const std::string& s) { return s.substr(Below(s.size() + 1)); }
  // Binary numbers that readers get wrong.
  void Number(std::string* s, size_t at) {
    static constexpr uint64_t kNumbers[] = {0,          1,          0x7f,       0xff,
                                            0x7fff,     0xffff,     0x7fffffff, 0xffffffff,
                                            1ull << 62, 1ull << 63, ~0ull,      100'000'000};
    const uint64_t value = kNumbers[Below(std::size(kNumbers))] + Below(3) - 1;
    const size_t width = size_t{1} << Below(4);
    if (at + width > s->size()) return;
    std::memcpy(s->data() + at, &value, width);
  }

  const FuzzTarget& target_;
  std::mt19937_64 random_;
};

struct Flags {
  uint64_t runs = ~0ull, seconds = ~0ull, seed = 1;
  std::vector<std::string> files;
};

Flags ParseFlags(int argc, char** argv) {
  Flags flags;
  const auto number = [](const char* arg, const char* name, uint64_t* out) {
    const size_t n = std::strlen(name);
    if (std::strncmp(arg, name, n) != 0) return false;
    *out = std::strtoull(arg + n, nullptr, 10);
    return true;
  };
  for (int i = 1; i < argc; ++i) {
    if (number(argv[i], "--runs=", &flags.runs) || number(argv[i], "--seconds=", &flags.seconds) ||
        number(argv[i], "--seed=", &flags.seed)) {
      continue;
    }
    flags.files.emplace_back(argv[i]);
  }
  if (flags.runs == ~0ull && flags.seconds == ~0ull) flags.runs = 10'000;
  return flags;
}

void RunOne(const FuzzTarget& target, std::string input) {
  current = &input;
  alarm(kHangSeconds);
  // A copy of its own, so that a sanitizer sees a read behind the end.
  const std::vector<uint8_t> exact(input.begin(), input.end());
  target.run(exact.data(), exact.size());
  current = nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  const Flags flags = ParseFlags(argc, argv);
  const char* name = std::strrchr(argv[0], '/');
  std::snprintf(crash_path, sizeof(crash_path), "crash-%s", name == nullptr ? argv[0] : name + 1);
  for (int s : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGALRM}) signal(s, OnSignal);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(SaveCurrent);
  const FuzzTarget target = millrace::testing::FuzzTargetOf();
  for (const std::string& path : flags.files) {
    std::ifstream in(path, std::ios::binary);
    RunOne(target, {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()});
  }
  if (!flags.files.empty()) return 0;
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto seconds = [&] {
    return std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start).count();
  };
  for (const std::string& seed : target.seeds) RunOne(target, seed);
  Mutator mutator(target, flags.seed);
  uint64_t runs = 0;
  while (runs < flags.runs && static_cast<uint64_t>(seconds()) < flags.seconds) {
    RunOne(target, mutator.Next());
    ++runs;
  }
  std::printf("fuzz: %llu inputs in %lld s from seed %llu, %zu seeds\n",
              static_cast<unsigned long long>(runs), static_cast<long long>(seconds()),
              static_cast<unsigned long long>(flags.seed), target.seeds.size());
  return 0;
}
