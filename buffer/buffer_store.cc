#include "buffer/buffer_store.h"

#include <errno.h>
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "buffer/buffer_store_sql.h"
#include "buffer/payload.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

// A transaction larger than this makes callers wait longer than group commit saves.
constexpr size_t kMaxTransactionBytes = 16 << 20;

}  // namespace

struct BufferStore::Instruments {
  explicit Instruments(Metrics* metrics)
      : batch(metrics->AddHistogram("millrace_buffer_commit_batch_changes",
                                    "Changes written by one transaction of the store.",
                                    {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024})),
        sync(metrics->AddHistogram("millrace_buffer_sync_seconds",
                                   "Seconds that the commit of one transaction took, with the disk "
                                   "sync.",
                                   Metrics::SecondsBuckets())),
        failures(metrics->AddCounter("millrace_buffer_store_failures_total",
                                     "Transactions of the store that failed.")),
        time(metrics, "buffer_writer") {}
  Histogram& batch;
  Histogram& sync;
  Counter& failures;
  TimeSplit time;
};

size_t TrajectoryRow::bytes() const {
  return payload.size() + trajectory.prompt_text.size() + trajectory.completion_text.size() +
         sizeof(TrajectoryRow);
}

TrajectoryRow MakeTrajectoryRow(Trajectory trajectory) {
  TrajectoryRow row;
  row.payload = EncodePayload(trajectory);
  row.tokens = static_cast<int64_t>(trajectory.token_ids.size());
  row.summary = {trajectory.key.index,     trajectory.key.attempt,    trajectory.status,
                 trajectory.reward,        OldestVersion(trajectory), -1,
                 SampledTokens(trajectory)};
  for (const VersionSpan& span : trajectory.versions) {
    row.summary.newest_version = std::max(row.summary.newest_version, span.version);
  }
  row.trajectory = std::move(trajectory);
  // Frees the memory too: the row may wait in the queue for a while.
  std::vector<int32_t>().swap(row.trajectory.token_ids);
  std::vector<uint8_t>().swap(row.trajectory.loss_mask);
  std::vector<float>().swap(row.trajectory.logprobs);
  std::vector<VersionSpan>().swap(row.trajectory.versions);
  return row;
}

BufferStore::BufferStore(Options options) : options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<BufferStore>> BufferStore::Open(Options options) {
  auto store = std::unique_ptr<BufferStore>(new BufferStore(std::move(options)));
  MR_RETURN_IF_ERROR(store->Lock());
  MR_RETURN_IF_ERROR(store->Prepare());
  store->instruments_ = std::make_unique<Instruments>(store->options_.metrics);
  store->writer_ = std::thread([raw = store.get()] { raw->WriterLoop(); });
  return store;
}

BufferStore::~BufferStore() {
  if (writer_.joinable()) {
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
    }
    writer_.join();
  }
  if (lock_fd_ >= 0) close(lock_fd_);  // lets go of the lock
}

absl::Status BufferStore::Lock() {
  const std::string path = options_.path + ".lock";
  lock_fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_fd_ < 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("cannot open the store's lock file ", path, ": ", strerror(errno)));
  }
  char text[32] = {};
  if (flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    const ssize_t n = pread(lock_fd_, text, sizeof(text) - 1, 0);
    return absl::AlreadyExistsError(absl::StrCat("the store ", options_.path,
                                                 " is in use by another buffer (process ",
                                                 n > 0 ? text : "unknown", ")"));
  }
  const std::string pid = std::to_string(getpid());
  if (ftruncate(lock_fd_, 0) != 0 ||
      pwrite(lock_fd_, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return absl::UnavailableError(
        absl::StrCat("cannot write the store's lock file ", path, ": ", strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status BufferStore::CheckOwner() {
  MR_ASSIGN_OR_RETURN(SqlStatement query,
                      database_.Prepare("SELECT value FROM meta WHERE key = 'run'"));
  MR_ASSIGN_OR_RETURN(const bool found, query.Step());
  if (found) {
    if (query.Text(0) == options_.run) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("the store ", options_.path,
                                                      " belongs to run \"", query.Text(0),
                                                      "\", not to run \"", options_.run, "\""));
  }
  MR_ASSIGN_OR_RETURN(SqlStatement insert,
                      database_.Prepare("INSERT INTO meta(key, value) VALUES ('run', ?)"));
  return insert.Bind(options_.run).Run();
}

absl::Status BufferStore::Prepare() {
  MR_ASSIGN_OR_RETURN(database_, SqlDatabase::Open(options_.path, false));
  // A bare file gets its page size before anything is written into it.
  MR_RETURN_IF_ERROR(database_.Execute("PRAGMA page_size=4096; PRAGMA journal_mode=WAL;"));
  MR_ASSIGN_OR_RETURN(const int64_t schema, database_.QueryInt("PRAGMA user_version"));
  if (schema > kStoreSchemaVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the store ", options_.path, " has schema version ", schema,
                     "; this program knows versions up to ", kStoreSchemaVersion));
  }
  MR_RETURN_IF_ERROR(
      database_.Execute(options_.sync ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=OFF"));
  MR_RETURN_IF_ERROR(database_.Execute(kStorePragmas));
  if (options_.max_pages > 0) {
    MR_RETURN_IF_ERROR(
        database_.Execute(absl::StrCat("PRAGMA max_page_count=", options_.max_pages)));
  }
  MR_RETURN_IF_ERROR(database_.Execute("BEGIN IMMEDIATE"));
  MR_RETURN_IF_ERROR(database_.Execute(kStoreSchema));
  MR_RETURN_IF_ERROR(CheckOwner());
  MR_RETURN_IF_ERROR(
      database_.Execute(absl::StrCat("PRAGMA user_version=", kStoreSchemaVersion, "; COMMIT")));
  statements_ = std::make_unique<StoreStatements>();
  MR_RETURN_IF_ERROR(statements_->Prepare(&database_));
  absl::MutexLock lock(&read_mu_);
  MR_ASSIGN_OR_RETURN(reader_, SqlDatabase::Open(options_.path, true));
  MR_ASSIGN_OR_RETURN(read_group_, reader_.Prepare(kReadGroup));
  return absl::OkStatus();
}

void BufferStore::Write(StoreChange change, Done done) {
  Item item{std::move(change), std::move(done), 0};
  if (item.change.trajectory.has_value()) item.bytes = item.change.trajectory->bytes();
  queued_bytes_ += item.bytes;
  absl::MutexLock lock(&mu_);
  queue_.push_back(std::move(item));
}

void BufferStore::WriterLoop() {
  std::vector<Item> items;
  for (;;) {
    instruments_->time.Enter("idle");
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &BufferStore::HasWork));
      if (queue_.empty()) return;  // stopping, and all is written
      size_t bytes = 0;
      while (!queue_.empty() && (items.empty() || bytes < kMaxTransactionBytes)) {
        bytes += queue_.front().bytes;
        items.push_back(std::move(queue_.front()));
        queue_.pop_front();
      }
    }
    const absl::Status status = Commit(items);
    if (!status.ok()) {
      instruments_->failures.Increment();
      spdlog::error("the store failed to write {} changes: {}", items.size(),
                    std::string(status.message()));
    }
    {
      absl::MutexLock lock(&mu_);
      health_ = status;
    }
    instruments_->batch.Observe(static_cast<double>(items.size()));
    instruments_->time.Enter("answer");
    for (Item& item : items) {
      queued_bytes_ -= item.bytes;
      if (item.done) item.done(status);
    }
    items.clear();
  }
}

absl::Status BufferStore::Commit(const std::vector<Item>& items) {
  instruments_->time.Enter("apply");
  absl::Status status = database_.Execute("BEGIN IMMEDIATE");
  for (const Item& item : items) {
    if (!status.ok()) break;
    status = Apply(item.change);
  }
  if (status.ok()) {
    instruments_->time.Enter("sync");
    const absl::Time begin = options_.clock->Now();
    status = database_.Execute("COMMIT");
    instruments_->sync.Observe(absl::ToDoubleSeconds(options_.clock->Now() - begin));
  }
  // Fails when the transaction is gone already, which is what is wanted.
  if (!status.ok()) database_.Execute("ROLLBACK").IgnoreError();
  return status;
}

absl::Status BufferStore::Apply(const StoreChange& change) {
  if (change.trajectory.has_value()) {
    MR_RETURN_IF_ERROR(statements_->InsertTrajectory(*change.trajectory,
                                                     absl::ToUnixMillis(options_.clock->Now())));
  }
  if (change.groups.forget_batches_after >= 0) {
    MR_RETURN_IF_ERROR(statements_->delete_batches.Bind(change.groups.forget_batches_after).Run());
  }
  for (const GroupRow& row : change.groups.groups) {
    MR_RETURN_IF_ERROR(statements_->UpsertGroup(row));
  }
  for (const BatchRow& batch : change.groups.batches) {
    MR_RETURN_IF_ERROR(statements_->UpsertBatch(batch));
  }
  if (change.groups.meta_changed) MR_RETURN_IF_ERROR(statements_->UpsertMeta(change.meta));
  for (const uint64_t group_id : change.groups.prune) {
    MR_RETURN_IF_ERROR(statements_->prune.Bind(group_id).Run());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Trajectory>> BufferStore::ReadGroup(uint64_t group_id) {
  std::vector<Trajectory> result;
  absl::MutexLock lock(&read_mu_);
  SqlStatement& query = *read_group_;
  query.Bind(group_id);
  absl::Status status;
  for (;;) {
    absl::StatusOr<bool> row = query.Step();
    if (!row.ok()) status = row.status();
    if (!row.ok() || !*row) break;
    Trajectory trajectory = StoreStatements::TrajectoryOf(query);
    trajectory.key.run = options_.run;
    trajectory.key.group_id = group_id;
    status = DecodePayload(query.Blob(StoreStatements::kPayloadColumn), &trajectory);
    if (!status.ok()) {
      status = absl::Status(
          status.code(), absl::StrCat("the store ", options_.path, ", group ", group_id, ", index ",
                                      trajectory.key.index, ": ", status.message()));
      break;
    }
    result.push_back(std::move(trajectory));
  }
  query.Reset();
  if (!status.ok()) return status;
  return result;
}

absl::StatusOr<BufferStore::Totals> BufferStore::Load(GroupStore* groups, int64_t now_ms) {
  // The writer thread is idle until the first Write, so its connection is free.
  MR_ASSIGN_OR_RETURN(GroupStoreMeta meta, LoadStoreMeta(&database_));
  groups->RestoreMeta(std::move(meta));
  MR_RETURN_IF_ERROR(LoadBatches(&database_, groups));
  Totals totals;
  MR_ASSIGN_OR_RETURN(totals.trajectories, LoadGroups(&database_, groups, now_ms));
  MR_ASSIGN_OR_RETURN(totals.sampled_tokens,
                      database_.QueryInt("SELECT sum(sampled_tokens) FROM trajectories"));
  return totals;
}

absl::Status BufferStore::health() const {
  absl::MutexLock lock(&mu_);
  return health_;
}

}  // namespace millrace
