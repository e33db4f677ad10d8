#include "weight_sync/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace millrace {

const char* SyncStageName(SyncStage stage) {
  switch (stage) {
    case SyncStage::kNone:
      return "none";
    case SyncStage::kPrepared:
      return "prepared";
    case SyncStage::kTransferred:
      return "transferred";
    case SyncStage::kVerified:
      return "verified";
    case SyncStage::kActivated:
      return "activated";
    case SyncStage::kFailed:
      return "failed";
  }
  return "unknown";
}

absl::StatusOr<Membership::Member*> Membership::Find(uint64_t id) {
  auto it = members_.find(id);
  if (it == members_.end()) {
    return absl::NotFoundError(absl::StrCat("member id ", id, " is not known here; join again"));
  }
  return &it->second;
}

void Membership::LeaveChains(uint64_t id) {
  for (auto it = chains_.begin(); it != chains_.end();) {
    std::vector<uint64_t>& ids = it->second;
    ids.erase(std::remove(ids.begin(), ids.end(), id), ids.end());
    it = ids.empty() ? chains_.erase(it) : std::next(it);
  }
}

absl::StatusOr<uint64_t> Membership::Join(JoinInfo info, absl::Time now) {
  if (info.name.empty()) return absl::InvalidArgumentError("a member needs a name");
  auto same = std::find_if(members_.begin(), members_.end(),
                           [&](const auto& m) { return m.second.name == info.name; });
  if (same != members_.end()) {
    LeaveChains(same->first);
    members_.erase(same);
  } else if (members_.size() >= options_.max_members) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "there are ", members_.size(), " members already; '", info.name, "' cannot join"));
  }
  Member member;
  member.id = next_id_++;
  member.name = std::move(info.name);
  member.control_address = std::move(info.control_address);
  member.bucket_address = std::move(info.bucket_address);
  member.last_heard = now;
  ++epoch_;
  const uint64_t id = member.id;
  members_.emplace(id, std::move(member));
  return id;
}

absl::Status Membership::Heartbeat(uint64_t id, int64_t active_version, absl::Time now) {
  MR_ASSIGN_OR_RETURN(Member * member, Find(id));
  member->last_heard = std::max(member->last_heard, now);
  member->active_version = std::max(member->active_version, active_version);
  // The report of the activation may have been lost.
  if (member->syncing() && active_version >= member->offered_version) {
    member->stage = SyncStage::kActivated;
  }
  return absl::OkStatus();
}

absl::Status Membership::Offer(uint64_t id, int64_t version, absl::Time now) {
  MR_ASSIGN_OR_RETURN(Member * member, Find(id));
  if (version <= member->active_version) {
    return absl::FailedPreconditionError(absl::StrCat("member '", member->name, "' has version ",
                                                      member->active_version, " active; ", version,
                                                      " is not newer"));
  }
  member->last_heard = std::max(member->last_heard, now);
  member->offered_version = version;
  member->offered_at = now;
  member->stage = SyncStage::kNone;
  member->holds = true;
  std::vector<uint64_t>& chain = chains_[version];
  chain.erase(std::remove(chain.begin(), chain.end(), id), chain.end());
  chain.push_back(id);
  // A chain of an older version matters only to those still fetching it.
  const std::set<int64_t> in_use = VersionsInUse();
  for (auto it = chains_.begin(); it != chains_.end() && it->first < version;) {
    it = in_use.count(it->first) > 0 ? std::next(it) : chains_.erase(it);
  }
  return absl::OkStatus();
}

absl::Status Membership::Report(uint64_t id, int64_t version, SyncStage stage, std::string error,
                                absl::Time now) {
  MR_ASSIGN_OR_RETURN(Member * member, Find(id));
  member->last_heard = std::max(member->last_heard, now);
  if (version != member->offered_version) {
    return absl::FailedPreconditionError(
        absl::StrCat("member '", member->name, "' reports version ", version,
                     "; offered to it was ", member->offered_version));
  }
  // kFailed is the highest stage, so it may follow any; nothing follows kActivated or kFailed.
  if (stage < member->stage || (stage != member->stage && !member->syncing())) {
    return absl::FailedPreconditionError(
        absl::StrCat("member '", member->name, "' reports stage ", SyncStageName(stage),
                     " of version ", version, " after stage ", SyncStageName(member->stage)));
  }
  member->stage = stage;
  if (stage == SyncStage::kFailed) member->last_error = std::move(error);
  if (stage == SyncStage::kActivated) {
    member->active_version = std::max(member->active_version, version);
    member->last_error.clear();
  }
  return absl::OkStatus();
}

void Membership::Dropped(uint64_t id, int64_t version) {
  auto it = members_.find(id);
  if (it != members_.end() && it->second.offered_version == version) it->second.holds = false;
}

absl::Status Membership::Leave(uint64_t id) {
  MR_RETURN_IF_ERROR(Find(id).status());
  LeaveChains(id);
  members_.erase(id);
  ++epoch_;
  return absl::OkStatus();
}

std::vector<std::string> Membership::Expire(absl::Time now) {
  std::vector<std::string> names;
  for (auto it = members_.begin(); it != members_.end();) {
    if (now - it->second.last_heard <= options_.timeout) {
      ++it;
      continue;
    }
    names.push_back(it->second.name);
    LeaveChains(it->first);
    it = members_.erase(it);
    ++epoch_;
  }
  return names;
}

std::vector<const Membership::Member*> Membership::Chain(int64_t version, absl::Time now) const {
  std::vector<const Member*> chain;
  auto it = chains_.find(version);
  if (it == chains_.end()) return chain;
  for (uint64_t id : it->second) {
    const Member& member = members_.at(id);
    const bool fetching = member.offered_version == version && member.syncing();
    const bool slow =
        member.stage < SyncStage::kTransferred && now - member.offered_at > options_.slow_after;
    const bool holds = member.holds || member.offered_version != version;
    if (holds && (member.active_version == version || (fetching && !slow))) {
      chain.push_back(&member);
    }
  }
  return chain;
}

std::set<int64_t> Membership::VersionsInUse() const {
  std::set<int64_t> versions;
  for (const auto& [id, member] : members_) {
    if (member.syncing()) versions.insert(member.offered_version);
  }
  return versions;
}

std::vector<std::string> PlanSources(const std::vector<std::string>& chain,
                                     const std::string& learner, size_t max_peers) {
  std::vector<std::string> sources;
  for (auto it = chain.rbegin(); it != chain.rend() && sources.size() < max_peers; ++it) {
    if (!it->empty() && std::find(sources.begin(), sources.end(), *it) == sources.end()) {
      sources.push_back(*it);
    }
  }
  sources.push_back(learner);
  return sources;
}

}  // namespace millrace
