// Tensors with known bytes, and a receiver that keeps what it was given.
#ifndef MILLRACE_TESTS_WEIGHT_SYNC_FAKE_WEIGHTS_H_
#define MILLRACE_TESTS_WEIGHT_SYNC_FAKE_WEIGHTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "weight_sync/publisher.h"
#include "weight_sync/subscriber.h"

namespace millrace {

// Owns the bytes of a few tensors of odd sizes; the seed decides every byte.
class FakeWeights {
 public:
  explicit FakeWeights(uint64_t seed, int64_t scale = 1) {
    std::mt19937_64 random(seed);
    auto add = [&](const std::string& name, const std::string& dtype, std::vector<int64_t> shape,
                   size_t element) {
      size_t bytes = element;
      for (int64_t dim : shape) bytes *= static_cast<size_t>(dim);
      storage_.emplace_back(bytes);
      for (std::byte& b : storage_.back()) b = static_cast<std::byte>(random());
      spans_.push_back({name, dtype, std::move(shape), {}});
    };
    add("embed.weight", "F32", {7 * scale, 1033}, 4);
    add("norm.weight", "BF16", {33}, 2);
    add("empty", "F32", {0, 5}, 4);
    for (int layer = 0; layer < 3; ++layer) {
      add(absl::StrCat("layer.", layer, ".weight"), "F32", {11 * scale, 97}, 4);
      add(absl::StrCat("layer.", layer, ".bias"), "F16", {5}, 2);
    }
    for (size_t i = 0; i < spans_.size(); ++i) spans_[i].bytes = storage_[i];
  }
  const std::vector<NamedSpan>& spans() const { return spans_; }
  uint64_t bytes() const {
    uint64_t total = 0;
    for (const auto& s : storage_) total += s.size();
    return total;
  }

 private:
  std::vector<std::vector<std::byte>> storage_;
  std::vector<NamedSpan> spans_;
};

// The files behind the version buffers that this process has mapped, once for each mapping.
inline std::vector<std::string> VersionMappings() {
  std::ifstream maps("/proc/self/maps");
  std::vector<std::string> inodes;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:millrace-version") == std::string::npos) continue;
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    inodes.push_back(fields[4]);
  }
  return inodes;
}
inline size_t MappedVersions() {
  const std::vector<std::string> inodes = VersionMappings();
  return std::set<std::string>(inodes.begin(), inodes.end()).size();
}

// Remembers the bytes of the active version. Thread-safe.
class FakeReceiver : public WeightReceiver {
 public:
  using Hook = std::function<absl::Status(int64_t version)>;
  void set_on_prepare(Hook hook) {
    absl::MutexLock lock(&mu_);
    on_prepare_ = std::move(hook);
  }
  void set_on_activate(Hook hook) {
    absl::MutexLock lock(&mu_);
    on_activate_ = std::move(hook);
  }
  absl::Status Prepare(int64_t version, absl::Span<const NamedSpan> tensors) override {
    Hook hook;
    {
      absl::MutexLock lock(&mu_);
      prepared_.push_back(version);
      hook = on_prepare_;
    }
    return hook ? hook(version) : absl::OkStatus();
  }
  absl::Status Activate(int64_t version, absl::Span<const NamedSpan> tensors,
                        absl::Time deadline) override {
    Hook hook;
    {
      absl::MutexLock lock(&mu_);
      hook = on_activate_;
    }
    if (hook) {
      absl::Status status = hook(version);
      if (!status.ok()) return status;
    }
    absl::MutexLock lock(&mu_);
    activated_.push_back(version);
    bytes_.clear();
    for (const NamedSpan& t : tensors) bytes_[t.name].assign(t.bytes.begin(), t.bytes.end());
    return absl::OkStatus();
  }
  std::vector<int64_t> prepared() {
    absl::MutexLock lock(&mu_);
    return prepared_;
  }
  std::vector<int64_t> activated() {
    absl::MutexLock lock(&mu_);
    return activated_;
  }
  bool HasBytes(const std::string& name, const std::vector<std::byte>& bytes) {
    absl::MutexLock lock(&mu_);
    auto it = bytes_.find(name);
    return it != bytes_.end() && it->second == bytes;
  }
  bool Has(const FakeWeights& weights) {
    absl::MutexLock lock(&mu_);
    if (bytes_.size() != weights.spans().size()) return false;
    for (const NamedSpan& t : weights.spans()) {
      auto it = bytes_.find(t.name);
      if (it == bytes_.end() ||
          !std::equal(t.bytes.begin(), t.bytes.end(), it->second.begin(), it->second.end())) {
        return false;
      }
    }
    return true;
  }

 private:
  absl::Mutex mu_;
  Hook on_prepare_ ABSL_GUARDED_BY(mu_);
  Hook on_activate_ ABSL_GUARDED_BY(mu_);
  std::vector<int64_t> prepared_ ABSL_GUARDED_BY(mu_);
  std::vector<int64_t> activated_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::vector<std::byte>> bytes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_WEIGHT_SYNC_FAKE_WEIGHTS_H_
