// A thin skin over SQLite's C interface: ownership and Status. One thread at a time per object.
#ifndef MILLRACE_BUFFER_SQLITE_H_
#define MILLRACE_BUFFER_SQLITE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct sqlite3;
struct sqlite3_stmt;

namespace millrace {

// A prepared statement. Text and blobs are not copied when bound: they must live until Reset().
class SqlStatement {
 public:
  SqlStatement() = default;
  SqlStatement(SqlStatement&& other) noexcept;
  SqlStatement& operator=(SqlStatement&& other) noexcept;
  ~SqlStatement();

  // Columns of a row to insert, or parameters of a query, from the first on, in order.
  SqlStatement& Bind(int64_t value);
  SqlStatement& Bind(uint64_t value) { return Bind(static_cast<int64_t>(value)); }
  SqlStatement& Bind(uint32_t value) { return Bind(static_cast<int64_t>(value)); }
  SqlStatement& Bind(double value);
  SqlStatement& Bind(absl::string_view text);
  SqlStatement& BindBlob(absl::string_view bytes);

  // True while there is a row. Errors carry SQLite's text and the database's path.
  absl::StatusOr<bool> Step();
  // Step() to the end, then Reset().
  absl::Status Run();
  void Reset();

  int64_t Int(int column) const;
  double Real(int column) const;
  std::string Text(int column) const;
  absl::string_view Blob(int column) const;  // until the next Step()

 private:
  friend class SqlDatabase;
  sqlite3_stmt* statement_ = nullptr;
  int next_ = 1;
};

class SqlDatabase {
 public:
  // Creates the file when it is missing, unless `read_only`.
  static absl::StatusOr<SqlDatabase> Open(const std::string& path, bool read_only);
  SqlDatabase() = default;
  SqlDatabase(SqlDatabase&& other) noexcept;
  SqlDatabase& operator=(SqlDatabase&& other) noexcept;
  ~SqlDatabase();

  // One or more statements whose rows are not wanted.
  absl::Status Execute(const std::string& sql);
  absl::StatusOr<SqlStatement> Prepare(const std::string& sql);
  // The first column of the first row; 0 when there is none.
  absl::StatusOr<int64_t> QueryInt(const std::string& sql);

 private:
  sqlite3* database_ = nullptr;
};

}  // namespace millrace

#endif  // MILLRACE_BUFFER_SQLITE_H_
