#include "buffer/group_store.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace millrace {
absl::Status GroupStoreOptions::Validate() const {
  if (group_size < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("rollout.group_size is ", group_size, "; a group needs at least 2 members"));
  }
  if (admission.groups_per_step < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffer.groups_per_step is ", admission.groups_per_step, "; valid: >= 1"));
  }
  if (admission.version_lead < 0 || max_staleness < 0 || max_attempts < 1 || lease_ms < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "buffer: version_lead ", admission.version_lead, " and max_staleness ", max_staleness,
        " must be >= 0, max_attempts ", max_attempts, " and lease_ms ", lease_ms, " >= 1"));
  }
  return absl::OkStatus();
}

const char* ToString(GroupState state) {
  switch (state) {
    case GroupState::kLeased:
      return "leased";
    case GroupState::kReady:
      return "ready";
    case GroupState::kAssigned:
      return "assigned";
    case GroupState::kCommitted:
      return "committed";
    case GroupState::kDropped:
      return "dropped";
  }
  return "unknown";
}

GroupStore::GroupStore(GroupStoreOptions options)
    : options_(std::move(options)), prompts_(options_.run_seed, options_.problems) {}

// ---------------------------------------------------------------- admission and versions

int64_t GroupStore::MaxStaleness() const {
  return options_.admission.version_lead == 0 ? 0 : options_.max_staleness;
}

int64_t GroupStore::MinVersion() const {
  // With room to spare, a server may go on with the weights it has while newer ones are on the way.
  const int64_t lead = options_.admission.version_lead;
  const int64_t slack = std::min(lead, std::max<int64_t>(0, MaxStaleness() - lead));
  return std::max(lineage_.newest_first(), meta_.version - slack);
}

bool GroupStore::Settled(uint64_t step) const {
  if (step <= meta_.committed_step || step < asked_step_) return true;
  const BatchRow* batch = FindBatch(step);
  return batch == nullptr || batch->version < meta_.version;
}

InFlight GroupStore::CountInFlight() const {
  InFlight result;
  result.leased = static_cast<int64_t>(open_.size() + deadlines_.size());
  result.ready = static_cast<int64_t>(ready_.size());
  for (const auto& [step, groups] : assigned_) {
    if (!Settled(step)) result.assigned += static_cast<int64_t>(groups.size());
  }
  return result;
}

int64_t GroupStore::StalenessOf(uint64_t group_id, int64_t version) const {
  const GroupRow* row = Find(group_id);
  if (row == nullptr || row->oldest_version < 0) return 0;
  return lineage_.Staleness(version, row->oldest_version);
}

absl::Status GroupStore::SetVersion(int64_t version, bool finished, int64_t now_ms) {
  const bool restarted = meta_.pending_rewind >= 0;
  if (version < meta_.version || (restarted && version == meta_.version)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "version ", version, " is not above version ", meta_.version,
        " which the buffer has seen; a learner that restarts calls Rewind and goes on from there"));
  }
  if (version > meta_.version && (restarted || meta_.version < 0)) {
    lineage_.Add({version, std::max<int64_t>(0, meta_.pending_rewind)});
    meta_.pending_rewind = -1;
  }
  if (version != meta_.version || finished != meta_.finished) TouchMeta();
  meta_.version = version;
  meta_.finished = finished;
  DropStale(version, now_ms);
  return absl::OkStatus();
}

// ---------------------------------------------------------------- leases

bool GroupStore::CanGrant() const {
  if (meta_.finished || AwaitingVersion()) return false;
  return !open_.empty() || MayAdmit(options_.admission, CountInFlight(), drop_rate_.rate());
}

std::string GroupStore::WhyNoLease() const {
  if (meta_.finished) return "nothing: the run is finished";
  if (AwaitingVersion()) return "the learner to publish its weights";
  const InFlight in = CountInFlight();
  return absl::StrCat("admission: ", in.total(), " of ",
                      AdmissionWindow(options_.admission, in, drop_rate_.rate()),
                      " groups in flight (", in.leased, " leased, ", in.ready, " ready, ",
                      in.assigned, " in training)");
}

GroupStore::Group& GroupStore::NewGroup(uint64_t problem_id, int64_t now_ms) {
  Group group;
  group.row.group_id = meta_.next_group_id++;
  group.row.problem_id = problem_id;
  group.row.seed = GroupSeed(options_.run_seed, group.row.group_id);
  group.row.group_size = options_.group_size;
  group.row.created_ms = now_ms;
  group.members.resize(options_.group_size);
  const uint64_t id = group.row.group_id;
  open_.insert(id);
  TouchMeta();
  Group& placed = groups_.emplace(id, std::move(group)).first->second;
  Touch(placed);
  return placed;
}

LeaseGrant GroupStore::GrantGroup(Group& group, const std::string& server, int64_t now_ms) {
  GroupRow& row = group.row;
  open_.erase(row.group_id);
  ++row.leases;
  row.holder = server;
  row.lease_deadline_ms = now_ms + options_.lease_ms;
  row.min_version = MinVersion();
  deadlines_.insert({row.lease_deadline_ms, row.group_id});
  Touch(group);
  LeaseGrant grant{row.group_id, row.leases - 1,  row.problem_id,       row.seed, row.group_size,
                   {},           row.min_version, row.lease_deadline_ms};
  for (uint32_t i = 0; i < row.group_size; ++i) {
    if (group.members[i].state == Member::kMissing) grant.missing.push_back(i);
  }
  return grant;
}

std::vector<LeaseGrant> GroupStore::Grant(const std::string& server, uint32_t max, int64_t now_ms) {
  std::vector<LeaseGrant> grants;
  while (grants.size() < max && CanGrant()) {
    Group& group = open_.empty() ? NewGroup(prompts_.ProblemAt(meta_.next_position++), now_ms)
                                 : groups_.at(*open_.begin());
    grants.push_back(GrantGroup(group, server, now_ms));
  }
  return grants;
}

void GroupStore::EndLease(Group& group) {
  if (group.row.lease_deadline_ms > 0) {
    deadlines_.erase({group.row.lease_deadline_ms, group.row.group_id});
    group.row.lease_deadline_ms = 0;
  } else {
    open_.erase(group.row.group_id);
  }
  Touch(group);
}

bool GroupStore::Renew(const std::string& server, uint64_t group_id, uint32_t attempt,
                       int64_t now_ms) {
  const auto it = groups_.find(group_id);
  if (it == groups_.end()) return false;
  GroupRow& row = it->second.row;
  if (row.state != GroupState::kLeased || row.lease_deadline_ms == 0 || row.holder != server ||
      row.leases != attempt + 1) {
    return false;
  }
  deadlines_.erase({row.lease_deadline_ms, group_id});
  row.lease_deadline_ms = now_ms + options_.lease_ms;
  deadlines_.insert({row.lease_deadline_ms, group_id});
  return true;  // not dirty: a restart gives every lease a whole lease_ms anyway
}

void GroupStore::Release(const std::string& server, uint64_t group_id, uint32_t attempt) {
  const auto it = groups_.find(group_id);
  if (it == groups_.end()) return;
  Group& group = it->second;
  if (group.row.state != GroupState::kLeased || group.row.lease_deadline_ms == 0 ||
      group.row.holder != server || group.row.leases != attempt + 1) {
    return;
  }
  EndLease(group);
  open_.insert(group_id);
}

void GroupStore::RunOut(Group& group, int64_t now_ms) {
  EndLease(group);
  ++expired_leases_;
  ++group.row.expired_leases;
  if (group.row.expired_leases < options_.max_attempts) {
    open_.insert(group.row.group_id);
    return;
  }
  Drop(group, kDropAttempts,
       absl::StrCat(group.row.expired_leases, " leases ran out, ", group.stored, " of ",
                    group.row.group_size, " members stored"),
       now_ms);
}

int GroupStore::ExpireLeases(int64_t now_ms) {
  int expired = 0;
  for (; !deadlines_.empty() && deadlines_.begin()->first <= now_ms; ++expired) {
    RunOut(groups_.at(deadlines_.begin()->second), now_ms);
  }
  return expired;
}

int GroupStore::Arrive(const std::string& server, uint64_t instance, int64_t now_ms) {
  const auto known = meta_.instances.find(server);
  const uint64_t before = known == meta_.instances.end() ? 0 : known->second;
  if (instance <= before) return 0;
  std::map<std::string, uint64_t> holders;  // servers without a lease need not be known
  std::vector<uint64_t> left;
  for (const auto& [deadline, id] : deadlines_) {
    const std::string& holder = groups_.at(id).row.holder;
    if (const auto it = meta_.instances.find(holder); it != meta_.instances.end()) {
      holders.insert(*it);
    }
    // Of a server that is heard of for the first time these may be its own: a store of a program
    // that kept no instances.
    if (holder == server && before > 0) left.push_back(id);
  }
  meta_.instances = std::move(holders);
  meta_.instances[server] = instance;
  TouchMeta();
  for (const uint64_t id : left) RunOut(groups_.at(id), now_ms);
  return static_cast<int>(left.size());
}

int64_t GroupStore::NextLeaseDeadline() const {
  return deadlines_.empty() ? std::numeric_limits<int64_t>::max() : deadlines_.begin()->first;
}

// ---------------------------------------------------------------- members

PushVerdict GroupStore::Reserve(const PushSubject& push) {
  const auto refuse = [](const auto&... parts) {
    return PushVerdict{PushVerdict::kRefuse, absl::StrCat(parts...)};
  };
  const auto it = groups_.find(push.group_id);
  if (it == groups_.end()) {
    const auto ended = ended_.find(push.group_id);
    if (ended == ended_.end()) {
      return refuse("key.group_id: group ", push.group_id,
                    push.group_id > 0 && push.group_id < meta_.next_group_id ? " ended long ago"
                                                                             : " was never leased");
    }
    const auto& attempts = ended->second.attempts;
    if (push.index < attempts.size() && attempts[push.index] == push.attempt) {
      return {PushVerdict::kDuplicate, ""};
    }
    return refuse("group ", push.group_id, " is ", ToString(ended->second.state),
                  ended->second.reason.empty() ? "" : " as ", ended->second.reason);
  }
  Group& group = it->second;
  if (push.index >= group.row.group_size) {
    return refuse("key.index: ", push.index, " is not below the group size ", group.row.group_size);
  }
  if (push.attempt >= group.row.leases) {
    return refuse("key.attempt: attempt ", push.attempt, " of group ", push.group_id,
                  " was never leased");
  }
  if (push.problem_id != group.row.problem_id) {
    return refuse("problem_id: ", push.problem_id, " is not the ", group.row.problem_id,
                  " of group ", push.group_id);
  }
  Member& member = group.members[push.index];
  if (member.state != Member::kMissing) {
    if (member.summary.attempt == push.attempt) return {PushVerdict::kDuplicate, ""};
    return refuse("index ", push.index, " of group ", push.group_id, " is there from attempt ",
                  member.summary.attempt);
  }
  member.state = Member::kReserved;
  member.summary.attempt = push.attempt;
  return {PushVerdict::kAccept, ""};
}

void GroupStore::Unreserve(uint64_t group_id, uint32_t index) {
  const auto it = groups_.find(group_id);
  if (it == groups_.end()) return;
  Member& member = it->second.members[index];
  if (member.state == Member::kReserved) member.state = Member::kMissing;
}

void GroupStore::AddMember(Group& group, const MemberSummary& member) {
  group.members[member.index] = {Member::kStored, member};
  ++group.stored;
  GroupRow& row = group.row;
  row.sampled_tokens += member.sampled_tokens;
  if (!IsUsable(member.status) || member.oldest_version < 0) return;
  row.oldest_version = row.oldest_version < 0 ? member.oldest_version
                                              : std::min(row.oldest_version, member.oldest_version);
  row.newest_version = std::max(row.newest_version, member.newest_version);
}

void GroupStore::Confirm(uint64_t group_id, const MemberSummary& member, int64_t now_ms) {
  const auto it = groups_.find(group_id);
  if (it == groups_.end()) {  // dropped while the member was on its way to the disk
    const auto ended = ended_.find(group_id);
    if (ended == ended_.end()) return;
    ended->second.attempts[member.index] = member.attempt;
    dropped_tokens_ += member.sampled_tokens;
    return;
  }
  AddMember(it->second, member);
  if (it->second.stored == it->second.row.group_size) Complete(it->second, now_ms);
}

void GroupStore::Complete(Group& group, int64_t now_ms) {
  EndLease(group);
  std::vector<MemberVerdict> members;
  double sum = 0;
  int64_t usable = 0;
  for (const Member& member : group.members) {
    members.push_back({member.summary.status, member.summary.reward});
    if (!IsUsable(member.summary.status)) continue;
    sum += member.summary.reward;
    ++usable;
  }
  group.row.reward_mean = usable == 0 ? 0 : sum / static_cast<double>(usable);
  const GroupVerdict verdict = JudgeGroup(members);
  drop_rate_.Observe(!verdict.keep);
  meta_.drop_rate = drop_rate_.rate();
  TouchMeta();
  if (!verdict.keep) {
    Drop(group, verdict.reason, verdict.detail, now_ms);
    return;
  }
  group.row.state = GroupState::kReady;
  group.row.ready_ms = now_ms;
  ready_.insert(KeyOf(group.row));
  DropStale(meta_.version, now_ms);
}

void GroupStore::Drop(Group& group, absl::string_view reason, std::string detail, int64_t now_ms) {
  if (group.row.state == GroupState::kReady) ready_.erase(KeyOf(group.row));
  group.row.state = GroupState::kDropped;
  group.row.reason = std::string(reason);
  group.row.detail = std::move(detail);
  group.row.ended_ms = now_ms;
  ++dropped_[group.row.reason];
  dropped_tokens_ += group.row.sampled_tokens;
  open_.erase(group.row.group_id);
  dirty_ended_[group.row.group_id] = group.row;
  End(group);
}

const GroupRow* GroupStore::Find(uint64_t group_id) const {
  const auto it = groups_.find(group_id);
  return it == groups_.end() ? nullptr : &it->second.row;
}

GroupCounts GroupStore::Counts() const {
  GroupCounts counts;
  counts.in_flight = CountInFlight();
  for (const auto& [step, groups] : assigned_) {
    counts.assigned += static_cast<int64_t>(groups.size());
  }
  counts.committed = committed_groups_;
  counts.active_leases = static_cast<int64_t>(deadlines_.size());
  counts.expired_leases = expired_leases_;
  counts.window = AdmissionWindow(options_.admission, counts.in_flight, drop_rate_.rate());
  counts.dropped = dropped_;
  counts.dropped_tokens = dropped_tokens_;
  counts.drop_rate = drop_rate_.rate();
  return counts;
}

}  // namespace millrace
