// Whole runs of GroupStore against simulated servers, learner and disk, with crashes of each. A
// case is named by its seed.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "buffer/group_store.h"

namespace millrace {
namespace {

// What the store's files would hold.
struct Disk {
  GroupStoreMeta meta;
  std::map<uint64_t, GroupRow> groups;
  std::map<uint64_t, BatchRow> batches;
  std::map<uint64_t, std::map<uint32_t, MemberSummary>> members;

  void Apply(const GroupStore::Changes& changes, const GroupStoreMeta& now) {
    if (changes.forget_batches_after >= 0) {
      batches.erase(batches.upper_bound(static_cast<uint64_t>(changes.forget_batches_after)),
                    batches.end());
    }
    for (const GroupRow& row : changes.groups) groups[row.group_id] = row;
    for (const BatchRow& batch : changes.batches) batches[batch.step] = batch;
    if (changes.meta_changed) meta = now;
  }
};

struct Setting {
  int64_t lead = 1;
  double drop_rate = 0;
  double crash_rate = 0;  // of each of server, buffer, learner, per event
  double disk_error_rate = 0;
  bool retry_stale = false;
  bool in_order = false;  // servers finish groups in the order of their leases
};

class Simulation {
 public:
  Simulation(uint64_t seed, Setting setting) : random_(seed), setting_(setting) {
    options_.group_size = static_cast<uint32_t>(Draw(2, 4));
    options_.admission = {Draw(1, 6), setting.lead, Draw(0, 3) > 0, 4};
    options_.max_staleness = setting.lead + Draw(0, 3);
    options_.retry_stale = setting.retry_stale;
    options_.max_attempts = 3;
    // Shorter than the time between crashes, or the leases of dead servers would never run out.
    options_.lease_ms = setting.crash_rate > 0 ? 100 : 5000;
    options_.run_seed = seed;
    store_ = std::make_unique<GroupStore>(options_);
  }

  // Runs until `steps` learner steps are committed. False (with a test failure) when it does not
  // get there.
  bool Run(uint64_t steps) {
    for (int64_t event = 0; event < 200000; ++event) {
      ++now_ms_;
      if (committed_ >= steps) return true;
      if (Chance(setting_.crash_rate)) RestartBuffer();
      if (Chance(setting_.crash_rate)) {  // the server dies; its leases run out, or it comes back
        leases_.clear();
        if (Draw(0, 1) == 0) store_->Arrive("server", ++instance_, now_ms_);
      }
      if (Chance(setting_.crash_rate)) learner_running_ = false;
      store_->ExpireLeases(now_ms_);
      if (Draw(0, 2) == 0) {
        Lease();
      } else if (Draw(0, 3) > 0) {
        PushOne();
      } else {
        Learn(steps);
      }
      Write();
      CheckCounts();
      if (::testing::Test::HasFailure()) return false;
    }
    ADD_FAILURE() << "no progress: committed " << committed_ << " of " << steps << "; leases wait "
                  << "for " << store_->WhyNoLease() << "; batch waits for " << store_->WhyNoBatch();
    return false;
  }

  int64_t stale_drops() const {
    const auto dropped = store_->Counts().dropped;
    const auto it = dropped.find("stale");
    return it == dropped.end() ? 0 : static_cast<int64_t>(it->second);
  }

 private:
  int64_t Draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  bool Chance(double p) { return std::uniform_real_distribution<double>(0, 1)(random_) < p; }

  // True when everything that changed is on disk.
  bool Write() {
    const GroupStore::Changes changes = store_->TakeDirty();
    if (Chance(setting_.disk_error_rate)) {
      store_->MarkDirty(changes);
      return changes.empty();
    }
    disk_.Apply(changes, store_->meta());
    return true;
  }

  void RestartBuffer() {
    store_ = std::make_unique<GroupStore>(options_);
    store_->RestoreMeta(disk_.meta);
    for (const auto& [step, batch] : disk_.batches) store_->RestoreBatch(batch);
    for (const auto& [id, row] : disk_.groups) {
      std::vector<MemberSummary> members;
      for (const auto& [index, member] : disk_.members[id]) members.push_back(member);
      store_->RestoreGroup(row, members, now_ms_);
    }
  }

  void Lease() {
    const uint64_t before = store_->meta().next_group_id;
    std::vector<LeaseGrant> grants = store_->Grant("server", Draw(1, 4), now_ms_);
    if (store_->meta().next_group_id > before) {
      const GroupCounts counts = store_->Counts();
      EXPECT_LE(counts.in_flight.total(), counts.window) << "admission bound exceeded";
    }
    if (!Write()) return;  // the reply was an error
    for (LeaseGrant& grant : grants) {
      EXPECT_LE(grant.min_version, store_->meta().version);
      EXPECT_FALSE(grant.missing.empty());
      leases_.push_back({std::move(grant), Chance(setting_.drop_rate)});
    }
  }

  void PushOne() {
    if (leases_.empty()) return;
    const int64_t last = setting_.in_order ? 0 : static_cast<int64_t>(leases_.size()) - 1;
    const size_t pick = static_cast<size_t>(Draw(0, last));
    HeldLease& lease = leases_[pick];
    const uint32_t index = lease.grant.missing.back();
    lease.grant.missing.pop_back();
    const uint64_t id = lease.grant.group_id;
    const PushVerdict verdict =
        store_->Reserve({id, index, lease.grant.attempt, lease.grant.problem_id});
    if (verdict.kind == PushVerdict::kAccept) {
      const int64_t version =
          Draw(lease.grant.min_version, std::max(lease.grant.min_version, store_->meta().version));
      MemberSummary member{index,
                           lease.grant.attempt,
                           TrajectoryStatus::kCompleted,
                           lease.degenerate ? 0.0 : index,
                           version,
                           version,
                           5};
      if (Chance(setting_.disk_error_rate)) {
        store_->Unreserve(id, index);
        lease.grant.missing.push_back(index);
      } else {
        EXPECT_EQ(disk_.members[id].count(index), 0u) << "group " << id << " stored twice";
        disk_.members[id][index] = member;
        store_->Confirm(id, member, now_ms_);
      }
    }
    if (lease.grant.missing.empty()) leases_.erase(leases_.begin() + static_cast<int64_t>(pick));
  }

  void Learn(uint64_t steps) {
    if (!learner_running_) {
      const auto returned = store_->Rewind(checkpoint_, now_ms_);
      ASSERT_TRUE(returned.ok()) << returned.status();
      if (!Write()) return;
      version_ = store_->meta().version + 1;
      ASSERT_TRUE(store_->SetVersion(version_, false, now_ms_).ok());
      step_ = checkpoint_;
      trained_.erase(trained_.upper_bound(checkpoint_), trained_.end());
      learner_running_ = true;
      return;
    }
    const auto batch = store_->TakeBatch(step_ + 1, version_, now_ms_);
    ASSERT_TRUE(batch.ok()) << batch.status();
    if (batch->empty() || !Write()) return;
    Train(*batch);
    if (step_ == steps || Draw(0, 2) == 0) {
      checkpoint_ = step_;
      if (store_->Commit(step_, now_ms_).ok() && Write()) committed_ = step_;
    }
  }

  void Train(const std::vector<uint64_t>& batch) {
    ASSERT_EQ(static_cast<int64_t>(batch.size()), options_.admission.groups_per_step);
    for (const uint64_t id : batch) {
      ASSERT_EQ(disk_.members[id].size(), options_.group_size) << "group " << id;
      for (const auto& [step, groups] : trained_) {
        ASSERT_EQ(groups.count(id), 0u)
            << "group " << id << " trained in " << step << " and " << step_ + 1;
      }
      const int64_t staleness = store_->StalenessOf(id, version_);
      ASSERT_LE(staleness, options_.admission.version_lead == 0 ? 0 : options_.max_staleness);
      if (options_.admission.version_lead == 0 && setting_.crash_rate == 0) {
        ASSERT_EQ(store_->Find(id)->oldest_version, version_);
        ASSERT_EQ(store_->Find(id)->newest_version, version_);
      }
    }
    trained_[++step_] = std::set<uint64_t>(batch.begin(), batch.end());
    ASSERT_TRUE(store_->SetVersion(++version_, false, now_ms_).ok());
  }

  void CheckCounts() {
    const GroupCounts counts = store_->Counts();
    uint64_t dropped = 0;
    for (const auto& [reason, count] : counts.dropped) dropped += count;
    EXPECT_EQ(static_cast<uint64_t>(counts.in_flight.leased + counts.in_flight.ready +
                                    counts.assigned + counts.committed) +
                  dropped,
              store_->meta().next_group_id - 1)
        << "groups do not add up";
    EXPECT_LE(counts.in_flight.assigned, counts.assigned);
  }

  struct HeldLease {
    LeaseGrant grant;
    bool degenerate;
  };

  std::mt19937_64 random_;
  const Setting setting_;
  GroupStoreOptions options_;
  std::unique_ptr<GroupStore> store_;
  Disk disk_;
  int64_t now_ms_ = 0;
  uint64_t instance_ = 0;
  std::vector<HeldLease> leases_;
  bool learner_running_ = false;
  uint64_t step_ = 0, checkpoint_ = 0, committed_ = 0;
  int64_t version_ = -1;
  std::map<uint64_t, std::set<uint64_t>> trained_;  // by step, along the surviving history
};

void RunCases(uint64_t first_seed, int cases, const Setting& setting, bool vary) {
  for (int i = 0; i < cases; ++i) {
    const uint64_t seed = first_seed + static_cast<uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    Setting one = setting;
    if (vary) {
      one.lead = i % 4;
      one.drop_rate = 0.1 * (i % 10);
      one.retry_stale = i % 3 == 0;
    }
    Simulation simulation(seed, one);
    if (!simulation.Run(8)) return;
  }
}

TEST(GroupStoreRandomTest, RunsOfAnyDropRateAndLeadReachTheirEnd) { RunCases(1000, 400, {}, true); }

TEST(GroupStoreRandomTest, CrashesOfServersBufferAndLearnerLoseNothingAndTrainNothingTwice) {
  RunCases(2000, 400, {1, 0, 0.004, 0}, true);
}

TEST(GroupStoreRandomTest, FailedWritesAreMadeUpForBeforeAnythingIsAnswered) {
  RunCases(3000, 200, {1, 0, 0.004, 0.05}, true);
}

TEST(GroupStoreRandomTest, OnPolicyRunsAreStrictlyOnPolicyAtAnyDropRate) {
  for (const double drop_rate : {0.0, 0.5, 0.9}) RunCases(4000, 40, {0, drop_rate, 0, 0}, false);
}

// A straggler can be overtaken without end; without stragglers admission alone holds the bound.
TEST(GroupStoreRandomTest, WithoutDropsCrashesOrStragglersNothingIsStale) {
  for (uint64_t seed = 5000; seed < 5050; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Simulation simulation(seed, {static_cast<int64_t>(seed % 4), 0, 0, 0, false, true});
    ASSERT_TRUE(simulation.Run(10));
    EXPECT_EQ(simulation.stale_drops(), 0);
  }
}

}  // namespace
}  // namespace millrace
