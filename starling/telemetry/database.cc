#include "starling/telemetry/database.h"

#include <fmt/format.h>

#include <new>
#include <system_error>
#include <utility>

#include "starling/base/error.h"
#include "starling/telemetry/lock_holder.h"

namespace starling {
namespace {

// Returns the errno of the call that failed last on a file, or 0.
int last_errno(sqlite3_file* file) {
  int number = 0;
  if (file != nullptr && file->pMethods != nullptr)
    file->pMethods->xFileControl(file, SQLITE_FCNTL_LAST_ERRNO, &number);
  return number;
}

// Returns the errno behind the last fault of the database, or 0. SQLite keeps it with the connection or, if
// the write of a commit failed, with the file: the database, its journal or its write-ahead log.
int errno_of(sqlite3* db) {
  if (const int number = sqlite3_system_errno(db); number != 0) return number;
  for (const int pointer : {SQLITE_FCNTL_FILE_POINTER, SQLITE_FCNTL_JOURNAL_POINTER}) {
    sqlite3_file* file = nullptr;
    if (sqlite3_file_control(db, "main", pointer, static_cast<void*>(&file)) != SQLITE_OK) continue;
    if (const int number = last_errno(file); number != 0) return number;
  }
  return 0;
}

// Returns what SQLite says of the last fault. If a call of the system failed, SQLite's own text does not say
// how.
std::string cause_of(sqlite3* db) {
  std::string cause = sqlite3_errmsg(db);
  const int kind = sqlite3_errcode(db) & 0xff;
  if (kind != SQLITE_IOERR && kind != SQLITE_CANTOPEN) return cause;
  if (const int number = errno_of(db); number != 0)
    cause += fmt::format(" ({})", std::generic_category().message(number));
  return cause;
}

[[noreturn]] void throw_fault(const std::string& path, sqlite3* db) {
  const std::string cause = cause_of(db);
  if ((sqlite3_errcode(db) & 0xff) == SQLITE_BUSY)
    throw DatabaseBusy(path, cause, describe_lock_holder(path));
  throw DatabaseError(path, cause);
}

[[noreturn]] void throw_fault(sqlite3* db) {
  const char* path = sqlite3_db_filename(db, "main");
  throw_fault(path == nullptr ? "" : path, db);
}

// Returns what the user may do about a cause.
const char* remedy_for(const std::string& cause) {
  for (const char* full : {"No space left on device", "Disk quota exceeded", "database or disk is full"})
    if (cause.find(full) != std::string::npos) return "free space";
  return "check that the disk has space and the file is yours";
}

}  // namespace

DatabaseError::DatabaseError(const std::string& path, const std::string& cause, std::string holder)
    : Error(ErrorCode::kCheckpoint,
            fmt::format("{}: {}; {}", path, cause, holder.empty() ? remedy_for(cause) : holder)),
      cause_(cause),
      holder_(std::move(holder)),
      remedy_(holder_.empty() ? remedy_for(cause) : holder_) {}

Statement::~Statement() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

bool Statement::next() {
  const int rc = sqlite3_step(statement_);
  if (rc != SQLITE_ROW && rc != SQLITE_DONE) throw_fault(sqlite3_db_handle(statement_));
  return rc == SQLITE_ROW;
}

std::string Statement::text(int column) const {
  const unsigned char* bytes = sqlite3_column_text(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return bytes == nullptr ? "" : std::string(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

Database::Database(const std::string& path, bool creates, std::chrono::milliseconds patience) {
  const int flags = SQLITE_OPEN_READWRITE | (creates ? SQLITE_OPEN_CREATE : 0);
  if (sqlite3_open_v2(path.c_str(), &db_, flags, nullptr) != SQLITE_OK) {
    if (db_ == nullptr) throw std::bad_alloc();
    const std::string cause = cause_of(db_);
    sqlite3_close(db_);
    throw DatabaseError(path, cause);
  }
  sqlite3_busy_timeout(db_, static_cast<int>(patience.count()));
}

Database::~Database() {
  for (auto& [sql, statement] : statements_) sqlite3_finalize(statement);
  sqlite3_close(db_);
}

void Database::run_script(const std::string& sql) {
  if (sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) throw_fault(db_);
}

void Database::check_bound(sqlite3_stmt* statement, int result) {
  if (result == SQLITE_OK) return;
  sqlite3* db = sqlite3_db_handle(statement);
  const char* path = sqlite3_db_filename(db, "main");
  sqlite3_clear_bindings(statement);
  throw DatabaseError(path == nullptr ? "" : path,
                      fmt::format("a value cannot be stored ({})", sqlite3_errstr(result)));
}

sqlite3_stmt* Database::prepare(const char* sql) {
  sqlite3_stmt*& statement = statements_[sql];
  if (statement == nullptr && sqlite3_prepare_v2(db_, sql, -1, &statement, nullptr) != SQLITE_OK)
    throw_fault(db_);
  return statement;
}

Transaction::Transaction(Database& database) : database_(database) {
  database_.run_script("BEGIN IMMEDIATE");
}

Transaction::~Transaction() {
  if (!open_) return;
  try {
    database_.run_script("ROLLBACK");
  } catch (const Error&) {  // SQLite has undone the transaction already
  }
}

void Transaction::commit() {
  database_.run_script("COMMIT");
  open_ = false;
}

}  // namespace starling
