// The batch half of GroupStore: TakeBatch, Commit, Rewind, and what a restart needs.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "buffer/group_store.h"

namespace millrace {
namespace {

// Committed steps that Rewind can still return: a learner may have to fall back to an older
// checkpoint than its newest one.
constexpr uint64_t kRewindableSteps = 64;

// Groups whose payloads one write removes: more would hold up the pushes behind it.
constexpr size_t kPrunedAtOnce = 64;

constexpr uint64_t kNoStep = std::numeric_limits<uint64_t>::max();

}  // namespace

GroupStore::ReadyKey GroupStore::KeyOf(const GroupRow& row) const {
  const bool rewound = row.step > 0;
  return {rewound ? row.step : kNoStep, rewound ? row.position : 0,
          lineage_.Updates(row.oldest_version), row.group_id};
}

void GroupStore::DropStale(int64_t version, int64_t now_ms) {
  if (AwaitingVersion()) return;  // after a rewind the old version says nothing
  std::vector<std::pair<uint64_t, int64_t>> stale;
  for (const ReadyKey& key : ready_) {
    const int64_t staleness = StalenessOf(key.group_id, version);
    if (staleness > MaxStaleness()) stale.push_back({key.group_id, staleness});
  }
  for (const auto& [group_id, staleness] : stale) {
    const uint64_t problem_id = groups_.at(group_id).row.problem_id;
    Drop(groups_.at(group_id), kDropStale,
         absl::StrCat("staleness ", staleness, " at version ", version, ", allowed ",
                      MaxStaleness()),
         now_ms);
    if (options_.retry_stale) NewGroup(problem_id, now_ms);
  }
}

const BatchRow* GroupStore::FindBatch(uint64_t step) const {
  const auto it = batches_.find(step);
  return it == batches_.end() ? nullptr : &it->second;
}

std::string GroupStore::WhyNoBatch() const {
  if (AwaitingVersion()) return "the learner to publish its weights";
  const InFlight in = CountInFlight();
  uint64_t dropped = 0;
  for (const auto& [reason, count] : dropped_) dropped += count;
  return absl::StrCat("groups: ", in.ready, " of ", options_.admission.groups_per_step, " ready, ",
                      in.leased, " leased (", deadlines_.size(), " held by a server), ", dropped,
                      " dropped so far");
}

absl::StatusOr<std::vector<uint64_t>> GroupStore::TakeBatch(uint64_t step, int64_t version,
                                                            int64_t now_ms) {
  if (step <= meta_.committed_step) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the batch of step ", step, " is committed (up to step ", meta_.committed_step, ")"));
  }
  if (const auto it = assigned_.find(step); it != assigned_.end()) return it->second;
  if (step != meta_.last_step + 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        "step ", step, " asks for a batch, but the newest one handed out was for step ",
        meta_.last_step, "; a learner that restarts calls Rewind first"));
  }
  asked_step_ = step;
  if (version > meta_.version) {
    if (absl::Status status = SetVersion(version, meta_.finished, now_ms); !status.ok()) {
      return status;
    }
  }
  if (AwaitingVersion()) return std::vector<uint64_t>();
  DropStale(version, now_ms);
  const size_t wanted = static_cast<size_t>(options_.admission.groups_per_step);
  if (ready_.size() < wanted) return std::vector<uint64_t>();

  BatchRow batch{step, version, {}};
  for (const auto& [reason, count] : dropped_) {
    const uint64_t before = meta_.reported_drops[reason];
    if (count > before) batch.dropped[reason] = count - before;
  }
  meta_.reported_drops = dropped_;
  std::vector<uint64_t> groups;
  while (groups.size() < wanted) {
    Group& group = groups_.at(ready_.begin()->group_id);
    ready_.erase(ready_.begin());
    group.row.state = GroupState::kAssigned;
    group.row.step = step;
    group.row.position = static_cast<uint32_t>(groups.size());
    group.row.assigned_ms = now_ms;
    Touch(group);
    groups.push_back(group.row.group_id);
  }
  assigned_[step] = groups;
  batches_[step] = std::move(batch);
  dirty_batches_.insert(step);
  meta_.last_step = step;
  TouchMeta();
  return groups;
}

absl::StatusOr<uint64_t> GroupStore::Commit(uint64_t step, int64_t now_ms) {
  if (step > meta_.last_step) {
    return absl::FailedPreconditionError(absl::StrCat(
        "step ", step, " cannot be committed: the newest batch was for step ", meta_.last_step));
  }
  uint64_t newly = 0;
  while (!assigned_.empty() && assigned_.begin()->first <= step) {
    auto node = assigned_.extract(assigned_.begin());
    for (const uint64_t id : node.mapped()) {
      Group& group = groups_.at(id);
      group.row.state = GroupState::kCommitted;
      group.row.ended_ms = now_ms;
      Touch(group);
      ++newly;
    }
    committed_.insert(std::move(node));
  }
  committed_groups_ += static_cast<int64_t>(newly);
  if (step > meta_.committed_step) {
    meta_.committed_step = step;
    TouchMeta();
  }
  return newly;
}

// Keeps only what late pushes need. The group is gone afterwards.
void GroupStore::End(Group& group) {
  Ended ended{group.row.state, group.row.reason, {}};
  for (const Member& member : group.members) {
    ended.attempts.push_back(
        member.state == Member::kStored ? static_cast<int64_t>(member.summary.attempt) : -1);
  }
  const uint64_t id = group.row.group_id;
  const auto has_payload = [](const Member& member) {
    return member.state == Member::kStored && !member.summary.pruned;
  };
  if (options_.keep_steps > 0 &&
      std::any_of(group.members.begin(), group.members.end(), has_payload)) {
    const bool trained = group.row.state == GroupState::kCommitted;
    prunable_[trained ? group.row.step : meta_.last_step].push_back(id);
  }
  dirty_.erase(id);
  ended_[id] = std::move(ended);
  ended_order_.push_back(id);
  while (ended_order_.size() > options_.remembered_groups) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
  groups_.erase(id);
}

// Moves groups of steps that can no longer be rewound out of memory. Not while their rows are
// unwritten.
void GroupStore::ForgetCommitted() {
  while (!committed_.empty() &&
         committed_.begin()->first + kRewindableSteps <= meta_.committed_step) {
    const auto& [step, ids] = *committed_.begin();
    for (const uint64_t id : ids) {
      if (dirty_.count(id) > 0) return;
    }
    for (const uint64_t id : ids) End(groups_.at(id));
    forgotten_step_ = step;
    batches_.erase(step);
    committed_.erase(committed_.begin());
  }
}

std::vector<uint64_t> GroupStore::TakePrunable() {
  std::vector<uint64_t> groups;
  const uint64_t keep = std::max(options_.keep_steps, kRewindableSteps);
  while (!prunable_.empty() && prunable_.begin()->first + keep <= meta_.committed_step &&
         groups.size() < kPrunedAtOnce) {
    std::vector<uint64_t>& ids = prunable_.begin()->second;
    const size_t count = std::min(ids.size(), kPrunedAtOnce - groups.size());
    groups.insert(groups.end(), ids.end() - static_cast<int64_t>(count), ids.end());
    ids.resize(ids.size() - count);
    if (ids.empty()) prunable_.erase(prunable_.begin());
  }
  return groups;
}

absl::StatusOr<uint64_t> GroupStore::Rewind(uint64_t step, int64_t now_ms) {
  if (step < forgotten_step_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot rewind to step ", step, ": the groups of the newest ", kRewindableSteps,
        " committed steps can be returned, those up to step ", forgotten_step_, " cannot"));
  }
  // A checkpoint of `step` exists, so the steps up to it are committed even if nobody said so.
  meta_.last_step = std::max(meta_.last_step, step);
  if (absl::StatusOr<uint64_t> committed = Commit(step, now_ms); !committed.ok()) return committed;
  uint64_t returned = 0;
  for (auto* steps : {&assigned_, &committed_}) {
    for (auto it = steps->upper_bound(step); it != steps->end(); it = steps->erase(it)) {
      for (const uint64_t id : it->second) {
        Group& group = groups_.at(id);
        if (group.row.state == GroupState::kCommitted) --committed_groups_;
        group.row.state = GroupState::kReady;
        group.row.ended_ms = 0;
        ready_.insert(KeyOf(group.row));
        Touch(group);
        ++returned;
      }
    }
  }
  batches_.erase(batches_.upper_bound(step), batches_.end());
  dirty_batches_.erase(dirty_batches_.upper_bound(step), dirty_batches_.end());
  forget_batches_after_ = forget_batches_after_ < 0
                              ? static_cast<int64_t>(step)
                              : std::min(forget_batches_after_, static_cast<int64_t>(step));
  meta_.last_step = step;
  meta_.committed_step = step;
  meta_.pending_rewind = static_cast<int64_t>(step);
  meta_.finished = false;
  asked_step_ = step;
  TouchMeta();
  return returned;
}

// ---------------------------------------------------------------- persistence

GroupStore::Changes GroupStore::TakeDirty() {
  Changes changes;
  for (auto& [id, row] : dirty_ended_) changes.groups.push_back(std::move(row));
  for (const uint64_t id : dirty_) changes.groups.push_back(groups_.at(id).row);
  for (const uint64_t step : dirty_batches_) {
    if (const BatchRow* batch = FindBatch(step)) changes.batches.push_back(*batch);
  }
  changes.forget_batches_after = forget_batches_after_;
  changes.meta_changed = dirty_meta_;
  dirty_ended_.clear();
  dirty_.clear();
  dirty_batches_.clear();
  forget_batches_after_ = -1;
  dirty_meta_ = false;
  meta_.lineage = lineage_.branches();
  ForgetCommitted();
  changes.prune = TakePrunable();
  return changes;
}

void GroupStore::MarkDirty(const Changes& changes) {
  for (const GroupRow& row : changes.groups) {
    if (groups_.count(row.group_id) > 0) {
      dirty_.insert(row.group_id);
    } else {
      dirty_ended_.emplace(row.group_id, row);
    }
  }
  for (const BatchRow& batch : changes.batches) dirty_batches_.insert(batch.step);
  if (changes.forget_batches_after >= 0) {
    forget_batches_after_ = forget_batches_after_ < 0
                                ? changes.forget_batches_after
                                : std::min(forget_batches_after_, changes.forget_batches_after);
    for (const auto& [step, batch] : batches_) {
      if (static_cast<int64_t>(step) > forget_batches_after_) dirty_batches_.insert(step);
    }
  }
  if (!changes.prune.empty()) {
    std::vector<uint64_t>& again = prunable_[0];  // the first to go
    again.insert(again.end(), changes.prune.begin(), changes.prune.end());
  }
  dirty_meta_ = dirty_meta_ || changes.meta_changed;
}

void GroupStore::RestoreMeta(GroupStoreMeta meta) {
  meta_ = std::move(meta);
  for (const Lineage::Branch& branch : meta_.lineage) lineage_.Add(branch);
  drop_rate_ = DropRate(0.05, meta_.drop_rate);
  asked_step_ = meta_.last_step;
}

void GroupStore::RestoreBatch(BatchRow batch) {
  const uint64_t step = batch.step;
  batches_[step] = std::move(batch);
}

void GroupStore::RestoreGroup(const GroupRow& row, absl::Span<const MemberSummary> members,
                              int64_t now_ms) {
  meta_.next_group_id = std::max(meta_.next_group_id, row.group_id + 1);
  Group& group = groups_[row.group_id];
  group.row = row;
  // Aggregates are made again from the members: the row may be older than the newest of them.
  group.row.sampled_tokens = 0;
  group.row.oldest_version = group.row.newest_version = -1;
  group.members.resize(row.group_size);
  bool pruned = false;
  for (const MemberSummary& member : members) {
    pruned |= member.pruned;
    if (member.index < row.group_size) AddMember(group, member);
  }
  expired_leases_ += row.expired_leases;
  const auto place = [&](std::map<uint64_t, std::vector<uint64_t>>& steps) {
    std::vector<uint64_t>& ids = steps[row.step];
    if (ids.size() <= row.position) ids.resize(row.position + 1);
    ids[row.position] = row.group_id;
  };
  switch (row.state) {
    case GroupState::kLeased:
      if (row.lease_deadline_ms > 0) {
        group.row.lease_deadline_ms = now_ms + options_.lease_ms;
        deadlines_.insert({group.row.lease_deadline_ms, row.group_id});
      } else {
        open_.insert(row.group_id);
      }
      if (group.stored == row.group_size) Complete(group, now_ms);
      break;
    case GroupState::kReady:
      ready_.insert(KeyOf(group.row));
      break;
    case GroupState::kAssigned:
      place(assigned_);
      break;
    case GroupState::kCommitted:
      ++committed_groups_;
      // After a rewind the committed step may be near to groups that were beyond its reach before.
      if (row.step + kRewindableSteps > meta_.committed_step && !pruned) {
        place(committed_);
      } else {
        forgotten_step_ = std::max(forgotten_step_, row.step);
        batches_.erase(row.step);
        End(group);
      }
      break;
    case GroupState::kDropped:
      ++dropped_[row.reason];
      dropped_tokens_ += group.row.sampled_tokens;
      End(group);
      break;
  }
}

}  // namespace millrace
