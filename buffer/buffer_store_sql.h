// The SQL of BufferStore: schema, statements, and rows to structs and back. One thread at a time.
#ifndef MILLRACE_BUFFER_BUFFER_STORE_SQL_H_
#define MILLRACE_BUFFER_BUFFER_STORE_SQL_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "buffer/buffer_store.h"
#include "buffer/group_store.h"
#include "buffer/sqlite.h"
#include "common/trajectory.h"

namespace millrace {

inline constexpr int64_t kStoreSchemaVersion = 1;
extern const char kStorePragmas[];
extern const char kStoreSchema[];
extern const char kReadGroup[];

struct StoreStatements {
  SqlStatement insert_trajectory, upsert_group, upsert_batch, upsert_meta, delete_batches, prune;

  absl::Status Prepare(SqlDatabase* database);
  absl::Status InsertTrajectory(const TrajectoryRow& row, int64_t now_ms);
  absl::Status UpsertGroup(const GroupRow& row);
  absl::Status UpsertBatch(const BatchRow& batch);
  absl::Status UpsertMeta(const GroupStoreMeta& meta);

  // The present row of kReadGroup, but for run, group id and payload.
  static Trajectory TrajectoryOf(const SqlStatement& row);
  static constexpr int kPayloadColumn = 15;
};

absl::StatusOr<GroupStoreMeta> LoadStoreMeta(SqlDatabase* database);
absl::Status LoadBatches(SqlDatabase* database, GroupStore* groups);
// Returns how many trajectories there are.
absl::StatusOr<int64_t> LoadGroups(SqlDatabase* database, GroupStore* groups, int64_t now_ms);

}  // namespace millrace

#endif  // MILLRACE_BUFFER_BUFFER_STORE_SQL_H_
