#include "buffer/buffer_store_sql.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace millrace {

// A long write-ahead log: its pages are synced once by the commit, and written once more to the
// file by a checkpoint, whose syncs are then rare.
const char kStorePragmas[] = "PRAGMA wal_autocheckpoint=8192; PRAGMA cache_size=-16384;";

// Small columns stand first, so that a scan over them does not touch the pages of the texts and
// payloads.
const char kStoreSchema[] = R"sql(
CREATE TABLE IF NOT EXISTS meta(
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS groups(
  group_id          INTEGER PRIMARY KEY,
  state             TEXT NOT NULL,
  reason            TEXT NOT NULL,
  detail            TEXT NOT NULL,
  problem_id        INTEGER NOT NULL,
  seed              INTEGER NOT NULL,
  group_size        INTEGER NOT NULL,
  leases            INTEGER NOT NULL,
  expired_leases    INTEGER NOT NULL,
  holder            TEXT NOT NULL,
  lease_deadline_ms INTEGER NOT NULL,
  min_version       INTEGER NOT NULL,
  oldest_version    INTEGER NOT NULL,
  newest_version    INTEGER NOT NULL,
  sampled_tokens    INTEGER NOT NULL,
  reward_mean       REAL NOT NULL,
  step              INTEGER NOT NULL,
  position          INTEGER NOT NULL,
  created_ms        INTEGER NOT NULL,
  ready_ms          INTEGER NOT NULL,
  assigned_ms       INTEGER NOT NULL,
  ended_ms          INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS batches(
  step    INTEGER PRIMARY KEY,
  version INTEGER NOT NULL,
  dropped TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS trajectories(
  id                INTEGER PRIMARY KEY,
  group_id          INTEGER NOT NULL,
  member_index      INTEGER NOT NULL,
  attempt           INTEGER NOT NULL,
  status            TEXT NOT NULL,
  reward            REAL NOT NULL,
  tokens            INTEGER NOT NULL,
  sampled_tokens    INTEGER NOT NULL,
  oldest_version    INTEGER NOT NULL,
  newest_version    INTEGER NOT NULL,
  problem_id        INTEGER NOT NULL,
  sampling_seed     INTEGER NOT NULL,
  temperature       REAL NOT NULL,
  created_unix_us   INTEGER NOT NULL,
  stored_unix_ms    INTEGER NOT NULL,
  generate_seconds  REAL NOT NULL,
  task              TEXT NOT NULL,
  server            TEXT NOT NULL,
  status_detail     TEXT NOT NULL,
  reward_components TEXT NOT NULL,
  prompt_text       TEXT NOT NULL,
  completion_text   TEXT NOT NULL,
  payload           BLOB NOT NULL,
  UNIQUE(group_id, member_index));
)sql";

const char kReadGroup[] =
    "SELECT member_index, attempt, status, reward, problem_id, sampling_seed, temperature,"
    " created_unix_us, generate_seconds, task, server, status_detail, reward_components,"
    " prompt_text, completion_text, payload"
    " FROM trajectories WHERE group_id = ? ORDER BY member_index";

namespace {

constexpr char kGroupColumns[] =
    "group_id, state, reason, detail, problem_id, seed, group_size, leases, expired_leases, holder,"
    " lease_deadline_ms, min_version, oldest_version, newest_version, sampled_tokens, reward_mean,"
    " step, position, created_ms, ready_ms, assigned_ms, ended_ms";

TrajectoryStatus StatusOfName(const std::string& name) {
  for (const TrajectoryStatus status :
       {TrajectoryStatus::kTruncated, TrajectoryStatus::kAborted, TrajectoryStatus::kFailed}) {
    if (name == ToString(status)) return status;
  }
  return TrajectoryStatus::kCompleted;
}

GroupState StateOfName(const std::string& name) {
  for (const GroupState state :
       {GroupState::kReady, GroupState::kAssigned, GroupState::kCommitted, GroupState::kDropped}) {
    if (name == ToString(state)) return state;
  }
  return GroupState::kLeased;
}

std::string ComponentsJson(const std::vector<RewardComponent>& components) {
  nlohmann::json list = nlohmann::json::array();
  for (const RewardComponent& component : components) {
    list.push_back({{"name", component.name}, {"value", component.value}});
  }
  return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<RewardComponent> ComponentsOf(const std::string& text) {
  std::vector<RewardComponent> components;
  const nlohmann::json list = nlohmann::json::parse(text, nullptr, false);
  if (!list.is_array()) return components;
  for (const nlohmann::json& entry : list) {
    components.push_back({entry.value("name", ""), entry.value("value", 0.0)});
  }
  return components;
}

std::map<std::string, uint64_t> CountsOf(const std::string& text) {
  const nlohmann::json counts = nlohmann::json::parse(text, nullptr, false);
  std::map<std::string, uint64_t> result;
  if (!counts.is_object()) return result;
  for (const auto& [reason, count] : counts.items()) {
    if (count.is_number_unsigned()) result[reason] = count.get<uint64_t>();
  }
  return result;
}

std::string CountsJson(const std::map<std::string, uint64_t>& counts) {
  return nlohmann::json(counts).dump();
}

}  // namespace

absl::Status StoreStatements::Prepare(SqlDatabase* database) {
  MR_ASSIGN_OR_RETURN(insert_trajectory,
                      database->Prepare("INSERT INTO trajectories VALUES "
                                        "(NULL,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)"));
  MR_ASSIGN_OR_RETURN(upsert_group, database->Prepare(absl::StrCat(
                                        "INSERT OR REPLACE INTO groups(", kGroupColumns,
                                        ") VALUES "
                                        "(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)")));
  MR_ASSIGN_OR_RETURN(upsert_batch,
                      database->Prepare("INSERT OR REPLACE INTO batches VALUES (?,?,?)"));
  MR_ASSIGN_OR_RETURN(upsert_meta, database->Prepare("INSERT OR REPLACE INTO meta VALUES (?,?)"));
  MR_ASSIGN_OR_RETURN(delete_batches, database->Prepare("DELETE FROM batches WHERE step > ?"));
  MR_ASSIGN_OR_RETURN(
      prune, database->Prepare("UPDATE trajectories SET payload = x'' WHERE group_id = ?"));
  return absl::OkStatus();
}

absl::Status StoreStatements::InsertTrajectory(const TrajectoryRow& row, int64_t now_ms) {
  const Trajectory& t = row.trajectory;
  const std::string components = ComponentsJson(t.reward_components);
  return insert_trajectory.Bind(t.key.group_id)
      .Bind(t.key.index)
      .Bind(t.key.attempt)
      .Bind(absl::string_view(ToString(t.status)))
      .Bind(t.reward)
      .Bind(row.tokens)
      .Bind(row.summary.sampled_tokens)
      .Bind(row.summary.oldest_version)
      .Bind(row.summary.newest_version)
      .Bind(t.problem_id)
      .Bind(t.sampling_seed)
      .Bind(static_cast<double>(t.temperature))
      .Bind(t.created_unix_us)
      .Bind(now_ms)
      .Bind(t.generate_seconds)
      .Bind(absl::string_view(t.task))
      .Bind(absl::string_view(t.server))
      .Bind(absl::string_view(t.status_detail))
      .Bind(absl::string_view(components))
      .Bind(absl::string_view(t.prompt_text))
      .Bind(absl::string_view(t.completion_text))
      .BindBlob(row.payload)
      .Run();
}

absl::Status StoreStatements::UpsertGroup(const GroupRow& row) {
  return upsert_group.Bind(row.group_id)
      .Bind(absl::string_view(ToString(row.state)))
      .Bind(absl::string_view(row.reason))
      .Bind(absl::string_view(row.detail))
      .Bind(row.problem_id)
      .Bind(row.seed)
      .Bind(row.group_size)
      .Bind(row.leases)
      .Bind(row.expired_leases)
      .Bind(absl::string_view(row.holder))
      .Bind(row.lease_deadline_ms)
      .Bind(row.min_version)
      .Bind(row.oldest_version)
      .Bind(row.newest_version)
      .Bind(row.sampled_tokens)
      .Bind(row.reward_mean)
      .Bind(row.step)
      .Bind(row.position)
      .Bind(row.created_ms)
      .Bind(row.ready_ms)
      .Bind(row.assigned_ms)
      .Bind(row.ended_ms)
      .Run();
}

absl::Status StoreStatements::UpsertBatch(const BatchRow& batch) {
  const std::string dropped = CountsJson(batch.dropped);
  return upsert_batch.Bind(batch.step).Bind(batch.version).Bind(absl::string_view(dropped)).Run();
}

absl::Status StoreStatements::UpsertMeta(const GroupStoreMeta& meta) {
  nlohmann::json lineage = nlohmann::json::array();
  for (const Lineage::Branch& branch : meta.lineage) {
    lineage.push_back({{"first_version", branch.first}, {"step", branch.step}});
  }
  const std::pair<const char*, std::string> values[] = {
      {"next_group_id", absl::StrCat(meta.next_group_id)},
      {"next_position", absl::StrCat(meta.next_position)},
      {"version", absl::StrCat(meta.version)},
      {"finished", meta.finished ? "1" : "0"},
      {"last_step", absl::StrCat(meta.last_step)},
      {"committed_step", absl::StrCat(meta.committed_step)},
      {"pending_rewind", absl::StrCat(meta.pending_rewind)},
      {"drop_rate", absl::StrCat(meta.drop_rate)},
      {"reported_drops", CountsJson(meta.reported_drops)},
      {"lineage", lineage.dump()},
      {"instances", CountsJson(meta.instances)},
  };
  for (const auto& [key, value] : values) {
    MR_RETURN_IF_ERROR(
        upsert_meta.Bind(absl::string_view(key)).Bind(absl::string_view(value)).Run());
  }
  return absl::OkStatus();
}

Trajectory StoreStatements::TrajectoryOf(const SqlStatement& row) {
  Trajectory t;
  t.key.index = static_cast<uint32_t>(row.Int(0));
  t.key.attempt = static_cast<uint32_t>(row.Int(1));
  t.status = StatusOfName(row.Text(2));
  t.reward = row.Real(3);
  t.problem_id = static_cast<uint64_t>(row.Int(4));
  t.sampling_seed = static_cast<uint64_t>(row.Int(5));
  t.temperature = static_cast<float>(row.Real(6));
  t.created_unix_us = row.Int(7);
  t.generate_seconds = row.Real(8);
  t.task = row.Text(9);
  t.server = row.Text(10);
  t.status_detail = row.Text(11);
  t.reward_components = ComponentsOf(row.Text(12));
  t.prompt_text = row.Text(13);
  t.completion_text = row.Text(14);
  return t;
}

absl::StatusOr<GroupStoreMeta> LoadStoreMeta(SqlDatabase* database) {
  MR_ASSIGN_OR_RETURN(SqlStatement query, database->Prepare("SELECT key, value FROM meta"));
  std::map<std::string, std::string> values;
  for (;;) {
    MR_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) break;
    values[query.Text(0)] = query.Text(1);
  }
  GroupStoreMeta meta;
  const auto number = [&values](const char* key, auto fallback) {
    int64_t value = 0;
    const auto it = values.find(key);
    return it != values.end() && absl::SimpleAtoi(it->second, &value)
               ? static_cast<decltype(fallback)>(value)
               : fallback;
  };
  meta.next_group_id = number("next_group_id", meta.next_group_id);
  meta.next_position = number("next_position", meta.next_position);
  meta.version = number("version", meta.version);
  meta.finished = number("finished", 0) != 0;
  meta.last_step = number("last_step", meta.last_step);
  meta.committed_step = number("committed_step", meta.committed_step);
  meta.pending_rewind = number("pending_rewind", meta.pending_rewind);
  if (!absl::SimpleAtod(values["drop_rate"], &meta.drop_rate)) meta.drop_rate = 0;
  meta.reported_drops = CountsOf(values["reported_drops"]);
  meta.instances = CountsOf(values["instances"]);
  const nlohmann::json lineage = nlohmann::json::parse(values["lineage"], nullptr, false);
  if (lineage.is_array()) {
    for (const nlohmann::json& branch : lineage) {
      meta.lineage.push_back(
          {branch.value("first_version", int64_t{0}), branch.value("step", int64_t{0})});
    }
  }
  return meta;
}

absl::Status LoadBatches(SqlDatabase* database, GroupStore* groups) {
  MR_ASSIGN_OR_RETURN(SqlStatement query,
                      database->Prepare("SELECT step, version, dropped FROM batches"));
  for (;;) {
    MR_ASSIGN_OR_RETURN(const bool row, query.Step());
    if (!row) return absl::OkStatus();
    groups->RestoreBatch(
        {static_cast<uint64_t>(query.Int(0)), query.Int(1), CountsOf(query.Text(2))});
  }
}

namespace {

GroupRow GroupRowOf(const SqlStatement& q) {
  GroupRow row;
  row.group_id = static_cast<uint64_t>(q.Int(0));
  row.state = StateOfName(q.Text(1));
  row.reason = q.Text(2);
  row.detail = q.Text(3);
  row.problem_id = static_cast<uint64_t>(q.Int(4));
  row.seed = static_cast<uint64_t>(q.Int(5));
  row.group_size = static_cast<uint32_t>(q.Int(6));
  row.leases = static_cast<uint32_t>(q.Int(7));
  row.expired_leases = static_cast<uint32_t>(q.Int(8));
  row.holder = q.Text(9);
  row.lease_deadline_ms = q.Int(10);
  row.min_version = q.Int(11);
  row.oldest_version = q.Int(12);
  row.newest_version = q.Int(13);
  row.sampled_tokens = q.Int(14);
  row.reward_mean = q.Real(15);
  row.step = static_cast<uint64_t>(q.Int(16));
  row.position = static_cast<uint32_t>(q.Int(17));
  row.created_ms = q.Int(18);
  row.ready_ms = q.Int(19);
  row.assigned_ms = q.Int(20);
  row.ended_ms = q.Int(21);
  return row;
}

}  // namespace

absl::StatusOr<int64_t> LoadGroups(SqlDatabase* database, GroupStore* groups, int64_t now_ms) {
  MR_ASSIGN_OR_RETURN(
      SqlStatement group,
      database->Prepare(absl::StrCat("SELECT ", kGroupColumns, " FROM groups ORDER BY group_id")));
  MR_ASSIGN_OR_RETURN(
      SqlStatement member,
      database->Prepare("SELECT group_id, member_index, attempt, status, reward, oldest_version,"
                        " newest_version, sampled_tokens, length(payload) = 0 FROM trajectories"
                        " ORDER BY group_id"));
  int64_t trajectories = 0;
  MR_ASSIGN_OR_RETURN(bool more, member.Step());
  for (;;) {
    MR_ASSIGN_OR_RETURN(const bool found, group.Step());
    if (!found) break;
    const GroupRow row = GroupRowOf(group);
    std::vector<MemberSummary> members;
    while (more && static_cast<uint64_t>(member.Int(0)) <= row.group_id) {
      ++trajectories;
      if (static_cast<uint64_t>(member.Int(0)) == row.group_id) {
        members.push_back({static_cast<uint32_t>(member.Int(1)),
                           static_cast<uint32_t>(member.Int(2)), StatusOfName(member.Text(3)),
                           member.Real(4), member.Int(5), member.Int(6), member.Int(7),
                           member.Int(8) != 0});
      }
      MR_ASSIGN_OR_RETURN(more, member.Step());
    }
    groups->RestoreGroup(row, members, now_ms);
  }
  return trajectories;
}

}  // namespace millrace
