// Stand-ins for what surrounds the lease loop and the service. All waits are on conditions, with
// kPatience as the deadline.
#ifndef MILLRACE_TESTS_ROLLOUT_SERVER_FAKES_H_
#define MILLRACE_TESTS_ROLLOUT_SERVER_FAKES_H_

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "environments/task.h"
#include "rollout_server/ports.h"

namespace millrace::testing {

inline constexpr absl::Duration kPatience = absl::Seconds(30);

// Waits until `f` is true under `mu`.
template <typename F>
bool AwaitTrue(absl::Mutex* mu, F f) {
  absl::MutexLock lock(mu);
  return mu->AwaitWithTimeout(absl::Condition(&f), kPatience);
}

// "copy N": the completion must be the digits of the id. Problem 13 cannot be made; the verifier
// has no answer to problem 14.
class CopyTask : public Task {
 public:
  std::string name() const override { return "copy"; }
  Problem Make(Split split, uint64_t id) const override {
    if (id == 13) throw std::runtime_error("no problem 13");
    Problem p;
    p.id = id;
    p.text = absl::StrCat(split == Split::kTrain ? "copy " : "held out: copy ", id, ": ");
    p.reference = absl::StrCat(id);
    return p;
  }
  Verdict Verify(const Problem& problem, absl::string_view completion) const override {
    if (problem.id == 14) throw std::runtime_error("verifier fell over");
    Verdict v;
    v.correct = completion == problem.reference;
    v.reward = v.correct ? 1 : 0;
    v.components = {{"exact", v.reward}};
    return v;
  }
  std::optional<std::string> Baseline(const Problem& problem) const override {
    return problem.id % 2 == 0 ? problem.reference : std::string("no idea");
  }
  std::vector<std::string> StopStrings() const override { return {"\n\n"}; }
};

class FakeBuffer : public LeaseBuffer {
 public:
  absl::StatusOr<LeaseResult> Lease(uint32_t max_groups, absl::Duration wait) override {
    absl::MutexLock lock(&mu_);
    ++lease_calls_;
    const auto ready = [this] { return finished_ || !error_.ok() || !offered_.empty(); };
    mu_.AwaitWithTimeout(absl::Condition(&ready), wait);
    if (!error_.ok()) return error_;
    LeaseResult result;
    result.finished = finished_ && offered_.empty();
    while (!offered_.empty() && result.leases.size() < max_groups) {
      result.leases.push_back(offered_.front());
      offered_.pop_front();
      ++handed_out_;
    }
    return result;
  }
  absl::StatusOr<RenewResult> Renew(const std::vector<LeaseName>& leases) override {
    absl::MutexLock lock(&mu_);
    RenewResult result;
    for (const LeaseName& name : leases) {
      ++renewals_[name.group_id];
      if (lost_.count(name.group_id) > 0) result.lost.push_back(name);
    }
    result.deadline = absl::Now() + renew_for_;
    return result;
  }
  absl::Status Release(const std::vector<LeaseName>& leases) override {
    absl::MutexLock lock(&mu_);
    for (const LeaseName& name : leases) released_.insert(name.group_id);
    return absl::OkStatus();
  }
  void Push(const Trajectory& trajectory, BufferClient::PushCallback done) override {
    PushOutcome outcome;
    {
      absl::MutexLock lock(&mu_);
      const bool refuse = refused_.count(trajectory.key.group_id) > 0 ||
                          (refuse_verdicts_ && trajectory.status != TrajectoryStatus::kFailed);
      outcome = refuse ? PushOutcome::kRefused : PushOutcome::kStored;
      pushed_.push_back(trajectory);
    }
    done(outcome, outcome == PushOutcome::kRefused ? "lease expired" : "");
  }
  absl::Status FlushPushes(absl::Duration) override { return absl::OkStatus(); }

  void Offer(GroupLease lease) {
    absl::MutexLock lock(&mu_);
    offered_.push_back(std::move(lease));
  }
  void Finish() {
    absl::MutexLock lock(&mu_);
    finished_ = true;
  }
  void Fail(absl::Status error) {
    absl::MutexLock lock(&mu_);
    error_ = std::move(error);
  }
  void Lose(uint64_t group) {
    absl::MutexLock lock(&mu_);
    lost_.insert(group);
  }
  void Refuse(uint64_t group) {
    absl::MutexLock lock(&mu_);
    refused_.insert(group);
  }
  // As for trajectories that are too large, or whose logprobs are not finite.
  void RefuseVerdicts() {
    absl::MutexLock lock(&mu_);
    refuse_verdicts_ = true;
  }
  void RenewFor(absl::Duration d) {
    absl::MutexLock lock(&mu_);
    renew_for_ = d;
  }
  bool AwaitPushed(size_t n) {
    return AwaitTrue(&mu_, [this, n] { return pushed_.size() >= n; });
  }
  bool AwaitReleased(uint64_t group) {
    return AwaitTrue(&mu_, [this, group] { return released_.count(group) > 0; });
  }
  bool AwaitRenewals(uint64_t group, int n) {
    return AwaitTrue(&mu_, [this, group, n] { return renewals_[group] >= n; });
  }
  bool AwaitLeaseCalls(int n) {
    return AwaitTrue(&mu_, [this, n] { return lease_calls_ >= n; });
  }
  bool AwaitHandedOut(int n) {
    return AwaitTrue(&mu_, [this, n] { return handed_out_ >= n; });
  }
  std::vector<Trajectory> pushed() {
    absl::MutexLock lock(&mu_);
    return pushed_;
  }
  std::set<uint64_t> released() {
    absl::MutexLock lock(&mu_);
    return released_;
  }
  int lease_calls() {
    absl::MutexLock lock(&mu_);
    return lease_calls_;
  }
  int handed_out() {
    absl::MutexLock lock(&mu_);
    return handed_out_;
  }

 private:
  absl::Mutex mu_;
  std::deque<GroupLease> offered_ ABSL_GUARDED_BY(mu_);
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  bool refuse_verdicts_ ABSL_GUARDED_BY(mu_) = false;
  std::set<uint64_t> lost_ ABSL_GUARDED_BY(mu_), refused_ ABSL_GUARDED_BY(mu_),
      released_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, int> renewals_ ABSL_GUARDED_BY(mu_);
  absl::Duration renew_for_ ABSL_GUARDED_BY(mu_) = absl::Hours(1);
  std::vector<Trajectory> pushed_ ABSL_GUARDED_BY(mu_);
  int lease_calls_ ABSL_GUARDED_BY(mu_) = 0;
  int handed_out_ ABSL_GUARDED_BY(mu_) = 0;
};

// Holds requests until the test ends their samples.
class FakeEngine : public SampleEngine {
 public:
  absl::StatusOr<uint64_t> Submit(EngineRequest request) override {
    absl::MutexLock lock(&mu_);
    if (!submit_error_.ok()) return submit_error_;
    const uint64_t id = ++last_id_;
    requests_[id] = std::move(request);
    return id;
  }
  void Cancel(uint64_t request) override {
    EngineRequest gone;
    {
      absl::MutexLock lock(&mu_);
      cancelled_.insert(request);
      auto it = requests_.find(request);
      if (it == requests_.end()) return;
      gone = std::move(it->second);
      requests_.erase(it);
    }
    EndAll(gone, "", FinishReason::kCancelled);
  }
  int64_t version() const override { return 0; }
  Engine::Stats stats() const override {
    absl::MutexLock lock(&mu_);
    Engine::Stats stats;
    stats.running = static_cast<int64_t>(requests_.size());
    return stats;
  }

  // Ends all samples of the oldest request with `text` (its bytes are the byte tokenizer's ids).
  bool EndOldest(const std::string& text, FinishReason reason = FinishReason::kStop) {
    if (!AwaitRequests(1)) return false;
    EngineRequest request;
    {
      absl::MutexLock lock(&mu_);
      request = std::move(requests_.begin()->second);
      requests_.erase(requests_.begin());
    }
    EndAll(request, text, reason);
    return true;
  }
  bool AwaitRequests(size_t n) {
    return AwaitTrue(&mu_, [this, n] { return requests_.size() >= n; });
  }
  bool AwaitCancelled(size_t n) {
    return AwaitTrue(&mu_, [this, n] { return cancelled_.size() >= n; });
  }
  std::vector<EngineRequest> requests() {
    absl::MutexLock lock(&mu_);
    std::vector<EngineRequest> out;
    for (const auto& [id, request] : requests_) out.push_back(request);
    return out;
  }
  void FailSubmit(absl::Status error) {
    absl::MutexLock lock(&mu_);
    submit_error_ = std::move(error);
  }

 private:
  static void EndAll(const EngineRequest& request, const std::string& text, FinishReason reason) {
    for (uint32_t index : request.indices) {
      GeneratedSample s;
      s.index = index;
      for (unsigned char c : text) {
        s.token_ids.push_back(c);
        s.logprobs.push_back(-0.25f);
      }
      const uint32_t n = static_cast<uint32_t>(text.size());
      // Two versions, as after a weight swap in mid-sample.
      if (n > 1) s.versions = {{3, 0, 1}, {4, 1, n}};
      if (n == 1) s.versions = {{3, 0, 1}};
      s.reason = reason;
      s.seconds = 0.5;
      request.on_sample(std::move(s));
    }
  }

  mutable absl::Mutex mu_;
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint64_t, EngineRequest> requests_ ABSL_GUARDED_BY(mu_);
  std::set<uint64_t> cancelled_ ABSL_GUARDED_BY(mu_);
  absl::Status submit_error_ ABSL_GUARDED_BY(mu_);
};

class FakeGate : public VersionGate {
 public:
  explicit FakeGate(int64_t version) : version_(version) {}
  int64_t active_version() const override {
    absl::MutexLock lock(&mu_);
    return version_;
  }
  absl::Status WaitForVersion(int64_t version, absl::Duration timeout) override {
    absl::MutexLock lock(&mu_);
    const auto there = [this, version] { return version_ >= version; };
    if (mu_.AwaitWithTimeout(absl::Condition(&there), timeout)) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat("the active version is ", version_));
  }
  void Set(int64_t version) {
    absl::MutexLock lock(&mu_);
    version_ = version;
  }

 private:
  mutable absl::Mutex mu_;
  int64_t version_ ABSL_GUARDED_BY(mu_);
};

inline GroupLease MakeLease(uint64_t group, uint64_t problem,
                            std::vector<uint32_t> missing = {0, 1}) {
  GroupLease lease;
  lease.group_id = group;
  lease.task = "copy";
  lease.problem_id = problem;
  lease.seed = 1000 + group;
  lease.group_size = static_cast<uint32_t>(missing.size());
  lease.missing = std::move(missing);
  lease.deadline = absl::Now() + absl::Hours(1);
  return lease;
}

}  // namespace millrace::testing

#endif  // MILLRACE_TESTS_ROLLOUT_SERVER_FAKES_H_
