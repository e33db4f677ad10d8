// A small group store and what is pushed into it, for tests.
#ifndef MILLRACE_TESTS_BUFFER_SMALL_STORE_H_
#define MILLRACE_TESTS_BUFFER_SMALL_STORE_H_

#include "buffer/group_store.h"

namespace millrace::testing {

inline GroupStoreOptions Small(int64_t lead = 1) {
  GroupStoreOptions options;
  options.group_size = 2;
  options.admission = {2, lead, true, 4};
  options.max_staleness = 4;
  options.max_attempts = 3;
  options.lease_ms = 1000;
  return options;
}

// Pushes member `index` of a lease and confirms it.
inline PushVerdict::Kind Push(GroupStore& store, const LeaseGrant& lease, uint32_t index,
                              double reward, int64_t version = 0, int64_t now_ms = 0) {
  const PushVerdict verdict =
      store.Reserve({lease.group_id, index, lease.attempt, lease.problem_id});
  if (verdict.kind == PushVerdict::kAccept) {
    store.Confirm(
        lease.group_id,
        {index, lease.attempt, TrajectoryStatus::kCompleted, reward, version, version, 10}, now_ms);
  }
  return verdict.kind;
}

// A group whose rewards differ (good) or not.
inline void Fill(GroupStore& store, const LeaseGrant& lease, bool good = true,
                 int64_t version = 0) {
  for (uint32_t i = 0; i < lease.group_size; ++i) {
    Push(store, lease, i, good ? i : 1, version);
  }
}

}  // namespace millrace::testing

#endif  // MILLRACE_TESTS_BUFFER_SMALL_STORE_H_
