#include "starling/telemetry/sqlite_sink.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "starling/base/error.h"
#include "starling/telemetry/async_sink.h"
#include "starling/telemetry/lock_holder.h"
#include "starling/telemetry/to_json.h"

namespace starling {
namespace {

constexpr int kSchemaVersion = 2;

constexpr const char* kSchema = R"(
CREATE TABLE run(id INTEGER PRIMARY KEY, started_at REAL NOT NULL, run_dir TEXT, model TEXT, data TEXT,
  ranks INTEGER, threads INTEGER, global_batch INTEGER, total_steps INTEGER, first_step INTEGER,
  params INTEGER, choices TEXT, local_processes INTEGER, local_cores INTEGER);
CREATE TABLE step(run INTEGER NOT NULL REFERENCES run, step INTEGER NOT NULL, epoch REAL, loss REAL, lr REAL,
  samples_per_s REAL, step_s REAL, compute_s REAL, exposed_comm_s REAL, data_wait_s REAL,
  slowest_rank INTEGER, eta_s REAL, PRIMARY KEY(run, step)) WITHOUT ROWID;
CREATE TABLE eval(run INTEGER NOT NULL REFERENCES run, step INTEGER NOT NULL, loss REAL, accuracy REAL,
  samples INTEGER);
CREATE TABLE checkpoint(run INTEGER NOT NULL REFERENCES run, step INTEGER NOT NULL, path TEXT, seconds REAL,
  error TEXT);
CREATE TABLE message(run INTEGER REFERENCES run, at REAL, severity TEXT, rank INTEGER, text TEXT);
CREATE TABLE result(run INTEGER NOT NULL REFERENCES run, model TEXT, steps INTEGER, ranks INTEGER,
  params INTEGER, samples_per_s REAL, train_loss REAL, test_loss REAL, test_accuracy REAL, wall_s REAL,
  compute_s REAL, exposed_comm_s REAL, data_wait_s REAL, bytes_sent INTEGER, peak_rss_mb TEXT,
  interrupted INTEGER);
)";

// Converts a store of version 1 into one of version 2.
constexpr const char* kFromVersion1 =
    "BEGIN; ALTER TABLE run ADD COLUMN local_processes INTEGER; "
    "ALTER TABLE run ADD COLUMN local_cores INTEGER; PRAGMA user_version=2; COMMIT;";

// An error of SQLite. emit() catches it.
struct SqliteFault : std::runtime_error {
  explicit SqliteFault(const std::string& why) : std::runtime_error(why) {}
  explicit SqliteFault(sqlite3* db)
      : std::runtime_error(sqlite3_errmsg(db)), busy((sqlite3_errcode(db) & 0xff) == SQLITE_BUSY) {}

  bool busy = false;  // another process has locked the database
};

class Database {
 public:
  explicit Database(const std::string& path) {
    const int rc = sqlite3_open_v2(path.c_str(), &db_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
    if (rc != SQLITE_OK) {
      const std::string why = db_ ? sqlite3_errmsg(db_) : sqlite3_errstr(rc);
      sqlite3_close(db_);
      throw SqliteFault(why);
    }
    sqlite3_busy_timeout(db_, 2000);
  }
  ~Database() {
    for (auto& [sql, statement] : statements_) sqlite3_finalize(statement);
    sqlite3_close(db_);
  }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  void run_script(const char* sql) {
    if (sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) throw SqliteFault(db_);
  }

  // Returns the first column of the first row of the result of `sql`.
  int64_t number(const char* sql) {
    sqlite3_stmt* statement = prepare(sql);
    const bool row = sqlite3_step(statement) == SQLITE_ROW;
    const int64_t value = row ? sqlite3_column_int64(statement, 0) : 0;
    sqlite3_reset(statement);
    if (!row) throw SqliteFault(db_);
    return value;
  }

  // Executes an INSERT and binds the values in order.
  template <typename... Values>
  void insert(const char* sql, const Values&... values) {
    sqlite3_stmt* statement = prepare(sql);
    int index = 0;
    (bind(statement, ++index, values), ...);
    const int rc = sqlite3_step(statement);
    sqlite3_reset(statement);
    if (rc != SQLITE_DONE) throw SqliteFault(db_);
  }

  int64_t last_row() const { return sqlite3_last_insert_rowid(db_); }

 private:
  sqlite3_stmt* prepare(const char* sql) {
    sqlite3_stmt*& statement = statements_[sql];
    if (!statement && sqlite3_prepare_v2(db_, sql, -1, &statement, nullptr) != SQLITE_OK) {
      throw SqliteFault(db_);
    }
    return statement;
  }
  static void bind(sqlite3_stmt* s, int i, double v) {
    std::isnan(v) ? sqlite3_bind_null(s, i) : sqlite3_bind_double(s, i, v);
  }
  static void bind(sqlite3_stmt* s, int i, int v) { sqlite3_bind_int(s, i, v); }
  static void bind(sqlite3_stmt* s, int i, int64_t v) { sqlite3_bind_int64(s, i, v); }
  static void bind(sqlite3_stmt* s, int i, std::nullptr_t) { sqlite3_bind_null(s, i); }
  static void bind(sqlite3_stmt* s, int i, const std::string& v) {
    sqlite3_bind_text(s, i, v.data(), static_cast<int>(v.size()), SQLITE_TRANSIENT);
  }

  sqlite3* db_ = nullptr;
  std::map<std::string, sqlite3_stmt*> statements_;
};

class SqliteSink final : public EventSink {
 public:
  SqliteSink(const std::string& path, const Clock& clock, const SqliteOptions& options)
      : db_(path), path_(path), clock_(clock), options_(options), opened_(clock.now()) {
    db_.run_script("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA foreign_keys=ON;");
    const int64_t version = db_.number("PRAGMA user_version");
    if (version == 0) {
      db_.run_script(
          fmt::format("BEGIN; {} PRAGMA user_version={}; COMMIT;", kSchema, kSchemaVersion).c_str());
    } else if (version == 1) {
      db_.run_script(kFromVersion1);
    } else if (version != kSchemaVersion) {
      throw SqliteFault(fmt::format("it is a run store of version {}, and this program writes version {}",
                                    version, kSchemaVersion));
    }
  }
  ~SqliteSink() override { flush(); }

  void emit(const Event& event) override {
    const std::lock_guard lock(mutex_);
    guarded([&] {
      if (pending_ == 0) {
        db_.run_script("BEGIN");
        begun_ = clock_.now();
      }
      ++pending_;
      std::visit([this](const auto& e) { store(e); }, event);
      if (pending_ >= options_.events_per_transaction || clock_.now() - begun_ >= options_.transaction_age ||
          std::holds_alternative<RunResult>(event)) {
        commit();
      }
    });
  }

  void flush() override {
    const std::lock_guard lock(mutex_);
    guarded([&] { commit(); });
  }

 private:
  void guarded(const auto& body) {
    if (silent_) return;
    try {
      body();
    } catch (const SqliteFault& fault) {
      silent_ = true;
      const std::string holder = fault.busy ? describe_lock_holder(path_) : "";
      std::fprintf(stderr,
                   "starling: cannot write %s (%s): %s, or choose another folder with --run-dir. No "
                   "further events are stored; training continues\n",
                   path_.c_str(), fault.what(), holder.empty() ? "free space" : holder.c_str());
    }
  }

  void commit() {
    if (pending_ == 0) return;
    pending_ = 0;
    db_.run_script("COMMIT");
  }

  // Returns the row of the current run. If an event precedes RunStarted, the row is empty.
  int64_t run() {
    if (run_ == 0) store(RunStarted{});
    return run_;
  }

  void store(const RunStarted& e) {
    db_.insert(
        "INSERT INTO "
        "run(started_at,run_dir,model,data,ranks,threads,global_batch,total_steps,first_step,params,choices,"
        "local_processes,local_cores) "
        "VALUES((julianday('now')-2440587.5)*86400.0,?,?,?,?,?,?,?,?,?,?,?,?)",
        e.run_dir, e.model, e.data, e.ranks, e.threads, e.global_batch, e.total_steps, e.first_step, e.params,
        text_of(nlohmann::json(e.choices)), e.local_processes, known(e.local_cores));
    run_ = db_.last_row();
  }
  void store(const StepDone& e) {
    db_.insert("INSERT OR REPLACE INTO step VALUES(?,?,?,?,?,?,?,?,?,?,?,?)", run(), e.step, e.epoch, e.loss,
               e.lr, e.samples_per_s, e.step_s, e.compute_s, e.exposed_comm_s, e.data_wait_s, e.slowest_rank,
               e.eta_s);
  }
  void store(const EvalDone& e) {
    db_.insert("INSERT INTO eval VALUES(?,?,?,?,?)", run(), e.step, e.loss, meaningful(e.accuracy),
               e.samples);
  }
  void store(const CheckpointDone& e) {
    db_.insert("INSERT INTO checkpoint VALUES(?,?,?,?,?)", run(), e.step, e.path, e.seconds, e.error);
  }
  void store(const Message& e) {
    const double at = to_seconds(clock_.now() - opened_);
    if (run_ == 0) {
      db_.insert("INSERT INTO message VALUES(?,?,?,?,?)", nullptr, at, std::string(name_of(e.severity)),
                 e.rank, e.text);
    } else {
      db_.insert("INSERT INTO message VALUES(?,?,?,?,?)", run_, at, std::string(name_of(e.severity)), e.rank,
                 e.text);
    }
  }
  void store(const RanksLost& e) { store(Message{Severity::kWarning, -1, starling::text_of(e)}); }
  void store(const RunResult& e) {
    db_.insert("INSERT INTO result VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", run(), e.model, e.steps, e.ranks,
               e.params, e.samples_per_s, e.train_loss, meaningful(e.test_loss), meaningful(e.test_accuracy),
               e.wall_s, e.compute_s, e.exposed_comm_s, e.data_wait_s, static_cast<int64_t>(e.bytes_sent),
               text_of(nlohmann::json(e.peak_rss_mb)), int{e.interrupted});
  }

  // In event.h, 0 means that a value is unknown. The store holds NULL instead.
  static double known(int64_t value) { return value == 0 ? std::nan("") : static_cast<double>(value); }
  // In event.h, -1 means that a value is not defined. The store holds NULL instead.
  static double meaningful(double value) { return value == -1 ? std::nan("") : value; }
  static std::string text_of(const nlohmann::json& value) {
    return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  std::mutex mutex_;
  Database db_;
  const std::string path_;
  const Clock& clock_;
  const SqliteOptions options_;
  const Nanoseconds opened_;
  Nanoseconds begun_{};
  int pending_ = 0;
  int64_t run_ = 0;
  bool silent_ = false;
};

}  // namespace

std::unique_ptr<EventSink> open_sqlite_sink(const std::string& path, const Clock& clock,
                                            const SqliteOptions& options) {
  try {
    return std::make_unique<SqliteSink>(path, clock, options);
  } catch (const SqliteFault& fault) {
    const std::string holder = fault.busy ? describe_lock_holder(path) : "";
    throw ConfigError("run.dir",
                      fmt::format("cannot open the run store {}: {}{}. Choose another folder with --run-dir",
                                  path, fault.what(), holder.empty() ? "" : "; " + holder));
  }
}

std::unique_ptr<EventSink> open_run_store(const std::string& run_dir, const Clock& clock) {
  return std::make_unique<AsyncSink>(open_sqlite_sink(run_dir + "/run.sqlite", clock));
}

}  // namespace starling
