#include "rollout_server/group_book.h"

#include <algorithm>

namespace millrace {
namespace {

LeaseName NameOf(const GroupLease& lease) { return {lease.group_id, lease.attempt}; }

// Half of what is left, so that one failed renewal still leaves time for another.
absl::Time RenewAt(absl::Time deadline, absl::Time now) {
  return now + std::max(absl::ZeroDuration(), (deadline - now) / 2);
}

}  // namespace

void GroupBook::Add(GroupLease lease, absl::Time now) {
  Group group;
  group.leased_at = now;
  group.renew_at = RenewAt(lease.deadline, now);
  group.unfinished = lease.missing.size();
  const Key key = KeyOf(NameOf(lease));
  group.lease = std::move(lease);
  const size_t samples = group.unfinished;
  if (groups_.emplace(key, std::move(group)).second) unfinished_ += samples;
}

std::vector<GroupLease> GroupBook::TakeSubmittable(int64_t active) {
  std::vector<GroupLease> out;
  for (auto& [key, group] : groups_) {
    if (group.submitted || group.lease.min_version > active) continue;
    group.submitted = true;
    generating_ += group.unfinished;
    out.push_back(group.lease);
  }
  return out;
}

int64_t GroupBook::AwaitedVersion() const {
  int64_t lowest = -1;
  for (const auto& [key, group] : groups_) {
    if (group.submitted) continue;
    if (lowest < 0 || group.lease.min_version < lowest) lowest = group.lease.min_version;
  }
  return lowest;
}

std::vector<LeaseName> GroupBook::TakeOverdue(absl::Time since) {
  std::vector<LeaseName> out;
  for (auto it = groups_.begin(); it != groups_.end();) {
    auto next = std::next(it);
    if (!it->second.submitted && it->second.leased_at < since) {
      out.push_back(NameOf(it->second.lease));
      Erase(it);
    }
    it = next;
  }
  return out;
}

void GroupBook::SetRequest(const LeaseName& name, uint64_t request) {
  auto it = groups_.find(KeyOf(name));
  if (it != groups_.end()) it->second.request = request;
}

void GroupBook::SampleEnded(const LeaseName& name) {
  auto it = groups_.find(KeyOf(name));
  if (it == groups_.end()) return;
  --it->second.unfinished;
  --unfinished_;
  if (it->second.submitted) --generating_;
  ++it->second.unanswered;
}

GroupBook::Ended GroupBook::PushAnswered(const LeaseName& name, bool stored) {
  auto it = groups_.find(KeyOf(name));
  if (it == groups_.end()) return {};
  --it->second.unanswered;
  if (stored) ++it->second.stored;
  return Settle(it);
}

bool GroupBook::Wanted(const LeaseName& name) const { return groups_.count(KeyOf(name)) > 0; }

std::vector<LeaseName> GroupBook::DueForRenewal(absl::Time now) const {
  std::vector<LeaseName> out;
  for (const auto& [key, group] : groups_) {
    if (group.renew_at <= now) out.push_back(NameOf(group.lease));
  }
  return out;
}

void GroupBook::Renewed(const std::vector<LeaseName>& names, absl::Time deadline, absl::Time now) {
  for (const LeaseName& name : names) {
    auto it = groups_.find(KeyOf(name));
    if (it == groups_.end()) continue;
    it->second.lease.deadline = deadline;
    it->second.renew_at = RenewAt(deadline, now);
  }
}

absl::Time GroupBook::NextRenewal() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [key, group] : groups_) next = std::min(next, group.renew_at);
  return next;
}

std::vector<uint64_t> GroupBook::Remove(const std::vector<LeaseName>& names) {
  std::vector<uint64_t> requests;
  for (const LeaseName& name : names) {
    auto it = groups_.find(KeyOf(name));
    if (it == groups_.end()) continue;
    if (it->second.request != 0 && it->second.unfinished > 0) {
      requests.push_back(it->second.request);
    }
    Erase(it);
  }
  return requests;
}

std::vector<LeaseName> GroupBook::Names() const {
  std::vector<LeaseName> out;
  for (const auto& [key, group] : groups_) out.push_back(NameOf(group.lease));
  return out;
}

GroupBook::Ended GroupBook::Settle(std::map<Key, Group>::iterator it) {
  const Group& group = it->second;
  Ended ended;
  if (group.unfinished > 0 || group.unanswered > 0) return ended;
  ended.done = true;
  ended.whole = group.stored == group.lease.missing.size();
  ended.release = !ended.whole;
  Erase(it);
  return ended;
}

void GroupBook::Erase(std::map<Key, Group>::iterator it) {
  unfinished_ -= it->second.unfinished;
  if (it->second.submitted) generating_ -= it->second.unfinished;
  groups_.erase(it);
}

}  // namespace millrace
