#include "starling/telemetry/database.h"

#include <fmt/format.h>

#include "starling/base/error.h"
#include "starling/telemetry/lock_holder.h"

namespace starling {
namespace {

constexpr int kPatienceMs = 10'000;

[[noreturn]] void throw_fault(const std::string& path, const std::string& why, bool busy) {
  const std::string holder = busy ? describe_lock_holder(path) : "";
  const std::string text =
      fmt::format("{}: {}; {}", path, why,
                  holder.empty() ? "check that the disk has space and the file is yours" : holder);
  if (busy) throw DatabaseBusy(ErrorCode::kCheckpoint, text);
  throw Error(ErrorCode::kCheckpoint, text);
}

[[noreturn]] void throw_fault(sqlite3* db) {
  const char* path = sqlite3_db_filename(db, "main");
  throw_fault(path == nullptr ? "" : path, sqlite3_errmsg(db), (sqlite3_errcode(db) & 0xff) == SQLITE_BUSY);
}

}  // namespace

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

Database::Database(const std::string& path, bool creates) : path_(path) {
  const int flags = SQLITE_OPEN_READWRITE | (creates ? SQLITE_OPEN_CREATE : 0);
  const int rc = sqlite3_open_v2(path.c_str(), &db_, flags, nullptr);
  if (rc != SQLITE_OK) {
    const std::string why = db_ != nullptr ? sqlite3_errmsg(db_) : sqlite3_errstr(rc);
    sqlite3_close(db_);
    throw_fault(path, why, false);
  }
  sqlite3_busy_timeout(db_, kPatienceMs);
}

Database::~Database() {
  for (auto& [sql, statement] : statements_) sqlite3_finalize(statement);
  sqlite3_close(db_);
}

void Database::run_script(const std::string& sql) {
  if (sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) throw_fault(db_);
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
