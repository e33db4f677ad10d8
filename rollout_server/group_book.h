// Which groups this server holds and how far each is. Plain bookkeeping: no lock, clock or thread;
// the lease loop guards it.
//
// A group goes: leased (waits for its min_version) -> submitted (samples end one by one, each is
// verified and pushed) -> done (every sample ended and every push answered), and may be lost or
// dropped at any point.
#ifndef MILLRACE_ROLLOUT_SERVER_GROUP_BOOK_H_
#define MILLRACE_ROLLOUT_SERVER_GROUP_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "buffer/buffer_client.h"

namespace millrace {

class GroupBook {
 public:
  // What is to be done after a group ended.
  struct Ended {
    bool done = false;     // the group is no longer in the book
    bool release = false;  // not all of its members are stored: give the lease back
    bool whole = false;    // all members were stored
  };

  void Add(GroupLease lease, absl::Time now);
  // Leases that wait for a version <= `active`, marked as submitted.
  std::vector<GroupLease> TakeSubmittable(int64_t active);
  // Lowest version that a leased group waits for; -1 when none waits.
  int64_t AwaitedVersion() const;
  // Leased groups that have waited for their version since before `since`; they leave the book.
  std::vector<LeaseName> TakeOverdue(absl::Time since);
  // The engine's name of a submitted group's request. No-op for a group that is already done.
  void SetRequest(const LeaseName& name, uint64_t request);

  // A sample ended; its push follows.
  void SampleEnded(const LeaseName& name);
  // The push of one member was answered; `stored` also for a duplicate.
  Ended PushAnswered(const LeaseName& name, bool stored);
  // Whether results for this group are still wanted.
  bool Wanted(const LeaseName& name) const;

  // Groups whose lease should be renewed now.
  std::vector<LeaseName> DueForRenewal(absl::Time now) const;
  void Renewed(const std::vector<LeaseName>& names, absl::Time deadline, absl::Time now);
  // When the next renewal is due; InfiniteFuture when no group is held.
  absl::Time NextRenewal() const;
  // Takes groups out of the book; returns the engine requests to cancel.
  std::vector<uint64_t> Remove(const std::vector<LeaseName>& names);

  std::vector<LeaseName> Names() const;
  size_t size() const { return groups_.size(); }
  // Samples that are waiting or generating.
  size_t unfinished_samples() const { return unfinished_; }
  // Of them, those handed to the engine.
  size_t generating_samples() const { return generating_; }

 private:
  struct Group {
    GroupLease lease;
    absl::Time leased_at;
    absl::Time renew_at;
    bool submitted = false;
    uint64_t request = 0;  // 0 = none yet
    size_t unfinished = 0;
    size_t unanswered = 0;  // ended, push not answered yet
    size_t stored = 0;
  };
  using Key = std::pair<uint64_t, uint32_t>;
  static Key KeyOf(const LeaseName& name) { return {name.group_id, name.attempt}; }
  Ended Settle(std::map<Key, Group>::iterator it);
  void Erase(std::map<Key, Group>::iterator it);

  std::map<Key, Group> groups_;
  size_t unfinished_ = 0;
  size_t generating_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_ROLLOUT_SERVER_GROUP_BOOK_H_
