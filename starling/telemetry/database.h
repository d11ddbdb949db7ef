// A SQLite database with statements, transactions and errors as exceptions.
#pragma once

#include <sqlite3.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "starling/base/error.h"

namespace starling {

// SQLite refused to read or write a database. what() names the path, the cause and a remedy.
class DatabaseError : public Error {
 public:
  // `holder` is what describe_lock_holder() says of another process (lock_holder.h).
  DatabaseError(const std::string& path, const std::string& cause, std::string holder = {});
  // What SQLite says and, if a call of the system failed, its error: "disk I/O error (No space left on
  // device)".
  const std::string& cause() const { return cause_; }
  // The process that keeps the database locked, with the remedy; "" if no such process is visible.
  const std::string& holder() const { return holder_; }
  // What the user may do: holder(), or what fits the cause.
  const std::string& remedy() const { return remedy_; }

 private:
  std::string cause_;
  std::string holder_;
  std::string remedy_;
};

// Another process held the write lock for longer than a connection waits. A later try may succeed.
class DatabaseBusy : public DatabaseError {
 public:
  using DatabaseError::DatabaseError;
};

// A prepared statement in use. Its destructor makes the statement ready for the next use.
class Statement {
 public:
  explicit Statement(sqlite3_stmt* borrowed) : statement_(borrowed) {}
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // Goes to the next row of the result. Returns false behind the last one. Errors: DatabaseError.
  bool next();
  // The values of the present row, by column from 0. NULL is 0 or "".
  int64_t integer(int column) const { return sqlite3_column_int64(statement_, column); }
  double real(int column) const { return sqlite3_column_double(statement_, column); }
  std::string text(int column) const;

 private:
  sqlite3_stmt* statement_;
};

// One connection. Not thread-safe, and not to be used after fork(). Errors of all methods: DatabaseError,
// which is DatabaseBusy if another process has the write lock.
class Database {
 public:
  // Opens the file, which is created if `creates`. Another connection may hold the write lock for up to
  // `patience`.
  Database(const std::string& path, bool creates,
           std::chrono::milliseconds patience = std::chrono::seconds(10));
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  // Executes statements without values.
  void run_script(const std::string& sql);
  // Prepares a statement, binds the values in order and returns it. `sql` is a literal.
  template <typename... Values>
  Statement query(const char* sql, const Values&... values) {
    sqlite3_stmt* statement = prepare(sql);
    int index = 0;
    (check_bound(statement, bind(statement, ++index, values)), ...);
    return Statement(statement);
  }
  // Executes a statement that returns no rows. Returns the number of rows that it changed.
  template <typename... Values>
  int run(const char* sql, const Values&... values) {
    {
      Statement statement = query(sql, values...);
      statement.next();
    }
    return sqlite3_changes(db_);
  }
  // The number of the row that was inserted last.
  int64_t last_row() const { return sqlite3_last_insert_rowid(db_); }

 private:
  sqlite3_stmt* prepare(const char* sql);
  // SQLite has no NaN, so NaN is stored as NULL.
  static int bind(sqlite3_stmt* s, int i, double v) {
    return std::isnan(v) ? sqlite3_bind_null(s, i) : sqlite3_bind_double(s, i, v);
  }
  static int bind(sqlite3_stmt* s, int i, std::nullptr_t) { return sqlite3_bind_null(s, i); }
  static int bind(sqlite3_stmt* s, int i, int v) { return sqlite3_bind_int(s, i, v); }
  static int bind(sqlite3_stmt* s, int i, int64_t v) { return sqlite3_bind_int64(s, i, v); }
  static int bind(sqlite3_stmt* s, int i, std::string_view v) {
    return sqlite3_bind_text64(s, i, v.data(), v.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
  }
  // Throws the error of a value that SQLite has refused, for example a text that is too long.
  static void check_bound(sqlite3_stmt* statement, int result);

  sqlite3* db_ = nullptr;
  std::map<std::string, sqlite3_stmt*> statements_;
};

// A write transaction. Without commit(), the destructor undoes what it changed.
class Transaction {
 public:
  explicit Transaction(Database& database);
  ~Transaction();
  Transaction(const Transaction&) = delete;
  Transaction& operator=(const Transaction&) = delete;
  void commit();

 private:
  Database& database_;
  bool open_ = true;
};

}  // namespace starling
