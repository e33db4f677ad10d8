#include "buffer/sqlite.h"

#include <sqlite3.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace millrace {
namespace {

absl::Status ErrorOf(sqlite3* database, absl::string_view what) {
  const int code = sqlite3_errcode(database);
  const char* path = sqlite3_db_filename(database, "main");
  const std::string text =
      absl::StrCat(what, " on ", path == nullptr ? "?" : path, ": ", sqlite3_errmsg(database),
                   " (SQLite error ", sqlite3_extended_errcode(database), ")");
  switch (code & 0xff) {
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(text);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_IOERR:
      return absl::UnavailableError(text);
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
      return absl::PermissionDeniedError(text);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(text);
    default:
      return absl::InternalError(text);
  }
}

}  // namespace

SqlStatement::SqlStatement(SqlStatement&& other) noexcept
    : statement_(std::exchange(other.statement_, nullptr)), next_(other.next_) {}

SqlStatement& SqlStatement::operator=(SqlStatement&& other) noexcept {
  std::swap(statement_, other.statement_);
  std::swap(next_, other.next_);
  return *this;
}

SqlStatement::~SqlStatement() { sqlite3_finalize(statement_); }

// Binding fails only for a wrong index or a too long value, which the next Step() reports.
SqlStatement& SqlStatement::Bind(int64_t value) {
  sqlite3_bind_int64(statement_, next_++, value);
  return *this;
}

SqlStatement& SqlStatement::Bind(double value) {
  sqlite3_bind_double(statement_, next_++, value);
  return *this;
}

SqlStatement& SqlStatement::Bind(absl::string_view text) {
  sqlite3_bind_text64(statement_, next_++, text.data() == nullptr ? "" : text.data(), text.size(),
                      SQLITE_STATIC, SQLITE_UTF8);
  return *this;
}

SqlStatement& SqlStatement::BindBlob(absl::string_view bytes) {
  sqlite3_bind_blob64(statement_, next_++, bytes.data(), bytes.size(), SQLITE_STATIC);
  return *this;
}

absl::StatusOr<bool> SqlStatement::Step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return ErrorOf(sqlite3_db_handle(statement_), "statement");
}

absl::Status SqlStatement::Run() {
  for (;;) {
    absl::StatusOr<bool> row = Step();
    if (row.ok() && *row) continue;
    Reset();
    return row.status();
  }
}

void SqlStatement::Reset() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
  next_ = 1;
}

int64_t SqlStatement::Int(int column) const { return sqlite3_column_int64(statement_, column); }
double SqlStatement::Real(int column) const { return sqlite3_column_double(statement_, column); }

std::string SqlStatement::Text(int column) const {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
  return text == nullptr
             ? std::string()
             : std::string(text, static_cast<size_t>(sqlite3_column_bytes(statement_, column)));
}

absl::string_view SqlStatement::Blob(int column) const {
  const auto* bytes = static_cast<const char*>(sqlite3_column_blob(statement_, column));
  return {bytes, static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}

absl::StatusOr<SqlDatabase> SqlDatabase::Open(const std::string& path, bool read_only) {
  SqlDatabase result;
  const int flags =
      (read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE) |
      SQLITE_OPEN_NOMUTEX;
  if (sqlite3_open_v2(path.c_str(), &result.database_, flags, nullptr) != SQLITE_OK) {
    const absl::Status error = ErrorOf(result.database_, "open");
    return absl::Status(error.code(), absl::StrCat(path, ": ", error.message()));
  }
  sqlite3_busy_timeout(result.database_, 5000);
  return result;
}

SqlDatabase::SqlDatabase(SqlDatabase&& other) noexcept
    : database_(std::exchange(other.database_, nullptr)) {}

SqlDatabase& SqlDatabase::operator=(SqlDatabase&& other) noexcept {
  std::swap(database_, other.database_);
  return *this;
}

SqlDatabase::~SqlDatabase() { sqlite3_close_v2(database_); }

absl::Status SqlDatabase::Execute(const std::string& sql) {
  if (sqlite3_exec(database_, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK) {
    return absl::OkStatus();
  }
  return ErrorOf(database_, sql.substr(0, sql.find('(')));
}

absl::StatusOr<SqlStatement> SqlDatabase::Prepare(const std::string& sql) {
  SqlStatement statement;
  if (sqlite3_prepare_v3(database_, sql.c_str(), -1, SQLITE_PREPARE_PERSISTENT,
                         &statement.statement_, nullptr) != SQLITE_OK) {
    return ErrorOf(database_, sql);
  }
  return statement;
}

absl::StatusOr<int64_t> SqlDatabase::QueryInt(const std::string& sql) {
  MR_ASSIGN_OR_RETURN(SqlStatement statement, Prepare(sql));
  MR_ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? statement.Int(0) : 0;
}

}  // namespace millrace
