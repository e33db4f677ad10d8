// Trajectories and options that buffer tests share.
#ifndef MILLRACE_TESTS_BUFFER_BUILDERS_H_
#define MILLRACE_TESTS_BUFFER_BUILDERS_H_

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "buffer/buffer_client.h"
#include "buffer/buffer_core.h"
#include "buffer/buffer_service.h"
#include "common/grpc_util.h"
#include "common/metrics.h"
#include "common/trajectory.h"

namespace millrace::testing {

// A folder that is gone with the object.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "millrace-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Valid: 4 prompt tokens, the rest sampled under `version`.
inline Trajectory MakeTrajectory(TrajectoryKey key, double reward, int64_t version = 0,
                                 size_t tokens = 12) {
  Trajectory t;
  t.key = std::move(key);
  t.task = "sums";
  t.reward = reward;
  t.reward_components = {{"exact", reward}};
  for (size_t i = 0; i < tokens; ++i) {
    const bool sampled = i >= 4;
    t.token_ids.push_back(static_cast<int32_t>(i * 7 % 1000));
    t.loss_mask.push_back(sampled ? 1 : 0);
    t.logprobs.push_back(sampled ? -0.25f * static_cast<float>(i % 5) : 0.0f);
  }
  t.versions = {{version, 4, static_cast<uint32_t>(tokens)}};
  t.sampling_seed = 0xfedcba9876543210ULL;
  t.server = "rollout-0";
  t.created_unix_us = 1700000000000000;
  t.generate_seconds = 0.5;
  t.prompt_text = "2+2=";
  t.completion_text = "4";
  return t;
}

inline Trajectory MakeTrajectory(const std::string& run, const GroupLease& lease, uint32_t index,
                                 double reward, int64_t version = 0, size_t tokens = 12) {
  Trajectory t =
      MakeTrajectory({run, lease.group_id, index, lease.attempt}, reward, version, tokens);
  t.problem_id = lease.problem_id;
  return t;
}

inline BufferCore::Options SmallCore(const std::string& store_path, Metrics* metrics) {
  BufferCore::Options options;
  options.run = "run-a";
  options.store_path = store_path;
  options.sync = false;  // the tests kill processes, not the power
  options.metrics = metrics;
  options.groups.task = "sums";
  options.groups.group_size = 2;
  options.groups.admission = {2, 1, true, 4};
  options.groups.lease_ms = 60000;
  return options;
}

}  // namespace millrace::testing

#endif  // MILLRACE_TESTS_BUFFER_BUILDERS_H_
