// Reads the store of a run (read-only, also while it is written) and checks what it says against
// the learner's lines.
#include <sqlite3.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/integration/run_harness.h"

namespace millrace::testing {
namespace {

void Query(const std::string& path, const char* sql,
           const std::function<void(sqlite3_stmt*)>& row) {
  sqlite3* db = nullptr;
  if (sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READWRITE, nullptr) == SQLITE_OK) {
    sqlite3_busy_timeout(db, 10000);
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v2(db, sql, -1, &statement, nullptr) == SQLITE_OK) {
      while (sqlite3_step(statement) == SQLITE_ROW) row(statement);
    }
    sqlite3_finalize(statement);
  }
  sqlite3_close(db);
}

std::string Text(sqlite3_stmt* statement, int column) {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement, column));
  return text == nullptr ? "" : text;
}

}  // namespace

StoreAudit TrainRun::Audit() const {
  StoreAudit audit;
  const std::string path = run_dir_ + "/buffer.sqlite";
  Query(
      path, "select group_id, member_index, attempt, server from trajectories",
      [&](sqlite3_stmt* s) {
        audit.keys.insert(absl::StrCat(sqlite3_column_int64(s, 0), "/", sqlite3_column_int64(s, 1),
                                       "/", sqlite3_column_int64(s, 2)));
        ++audit.trajectories_by_server[Text(s, 3)];
      });
  Query(path, "select group_id, state, step from groups", [&](sqlite3_stmt* s) {
    const std::string state = Text(s, 1);
    ++audit.groups_by_state[state];
    if (state == "committed")
      audit.committed_step[sqlite3_column_int64(s, 0)] = sqlite3_column_int64(s, 2);
  });
  return audit;
}

void ExpectExactlyOnce(const TrainRun& run, int64_t steps, const std::set<std::string>& before) {
  const StoreAudit audit = run.Audit();
  std::map<uint64_t, int64_t> trained;
  int64_t next = 1;
  for (const nlohmann::json& row : run.Metrics()) {
    EXPECT_EQ(row["step"].get<int64_t>(), next++) << "metrics.jsonl has a gap or a repeat";
    for (const auto& id : row["group_ids"]) {
      const auto [at, fresh] = trained.emplace(id.get<uint64_t>(), row["step"].get<int64_t>());
      EXPECT_TRUE(fresh) << "group " << id << " was trained at step " << at->second
                         << " and at step " << row["step"];
    }
  }
  EXPECT_EQ(next - 1, steps);
  for (const auto& [group, step] : trained) {
    const auto at = audit.committed_step.find(group);
    if (at == audit.committed_step.end()) {
      ADD_FAILURE() << "group " << group << " was trained at step " << step
                    << " and is not committed in the store";
    } else {
      EXPECT_EQ(at->second, step) << "group " << group;
    }
  }
  EXPECT_EQ(audit.committed_step.size(), trained.size());
  for (const std::string& key : before) {
    EXPECT_TRUE(audit.keys.contains(key)) << "stored trajectory " << key << " is gone";
  }
}

}  // namespace millrace::testing
