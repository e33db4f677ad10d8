// The buffer's memory on disk: one SQLite file (WAL) with a row for every trajectory and group,
// made to be queried by people while the run goes on. docs/buffer_store.md describes the schema.
//
// One writer thread commits whatever has queued up as one transaction (group commit), so one disk
// sync serves many callers; a caller's `done` runs after the sync, in the order of the Write calls,
// on the writer thread with no lock held. Thread-safe.
#ifndef MILLRACE_BUFFER_BUFFER_STORE_H_
#define MILLRACE_BUFFER_BUFFER_STORE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "buffer/group_store.h"
#include "buffer/sqlite.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "common/trajectory.h"

namespace millrace {

// A trajectory on its way to the disk. Its per-token arrays live in `payload` alone.
struct TrajectoryRow {
  Trajectory trajectory;  // token_ids, loss_mask, logprobs, versions are empty
  std::string payload;
  int64_t tokens = 0;  // T
  MemberSummary summary;
  size_t bytes() const;  // about what it takes in memory
};
TrajectoryRow MakeTrajectoryRow(Trajectory trajectory);

// Applied whole or not at all.
struct StoreChange {
  std::optional<TrajectoryRow> trajectory;
  GroupStore::Changes groups;
  GroupStoreMeta meta;  // written when groups.meta_changed
};

struct StoreStatements;

class BufferStore {
 public:
  struct Options {
    std::string path;  // of the SQLite file; path-wal, path-shm and path.lock lie beside it
    std::string run;
    bool sync = true;       // sync the disk before `done`; false survives kill -9, not a power cut
    int64_t max_pages = 0;  // largest file size in pages of 4 KiB, 0 = no limit
    Clock* clock = nullptr;
    Metrics* metrics = nullptr;
  };
  // Creates or opens the file. FAILED_PRECONDITION: it belongs to another run, or a newer program
  // wrote it; ALREADY_EXISTS: another process has it open; PERMISSION_DENIED, DATA_LOSS: the file.
  static absl::StatusOr<std::unique_ptr<BufferStore>> Open(Options options);
  // Writes what is queued, then closes.
  ~BufferStore();

  // Puts what the file held into `groups`. Once, before the first Write.
  struct Totals {
    int64_t trajectories = 0;
    int64_t sampled_tokens = 0;
  };
  absl::StatusOr<Totals> Load(GroupStore* groups, int64_t now_ms);

  using Done = std::function<void(absl::Status)>;
  void Write(StoreChange change, Done done);
  // Bytes of trajectories that wait for the disk.
  size_t queued_bytes() const { return queued_bytes_.load(std::memory_order_relaxed); }

  // All trajectories of a group, by index. DATA_LOSS names the group and index of a bad payload.
  absl::StatusOr<std::vector<Trajectory>> ReadGroup(uint64_t group_id);
  // The last write's error, OK after a write that succeeded.
  absl::Status health() const;

 private:
  struct Item {
    StoreChange change;
    Done done;
    size_t bytes = 0;
  };
  struct Instruments;

  explicit BufferStore(Options options);
  absl::Status Lock();
  absl::Status Prepare();
  absl::Status CheckOwner();
  void WriterLoop();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !queue_.empty() || stopping_; }
  absl::Status Commit(const std::vector<Item>& items);
  absl::Status Apply(const StoreChange& change);

  const Options options_;
  int lock_fd_ = -1;
  SqlDatabase database_;  // of the writer thread, after Open and Load
  std::unique_ptr<StoreStatements> statements_;
  std::unique_ptr<Instruments> instruments_;

  mutable absl::Mutex mu_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status health_ ABSL_GUARDED_BY(mu_);
  std::atomic<size_t> queued_bytes_{0};

  absl::Mutex read_mu_;
  SqlDatabase reader_ ABSL_GUARDED_BY(read_mu_);
  std::optional<SqlStatement> read_group_ ABSL_GUARDED_BY(read_mu_);

  std::thread writer_;
};

}  // namespace millrace

#endif  // MILLRACE_BUFFER_BUFFER_STORE_H_
