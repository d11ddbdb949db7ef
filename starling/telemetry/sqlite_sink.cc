#include "starling/telemetry/sqlite_sink.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>

#include "starling/base/error.h"
#include "starling/telemetry/async_sink.h"
#include "starling/telemetry/database.h"
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

constexpr std::chrono::seconds kPatience(2);

// Returns the first column of the first row of the result of `sql`.
int64_t number(Database& db, const char* sql) {
  Statement statement = db.query(sql);
  return statement.next() ? statement.integer(0) : 0;
}

class SqliteSink final : public EventSink {
 public:
  SqliteSink(const std::string& path, const Clock& clock, const SqliteOptions& options)
      : db_(path, true, kPatience), path_(path), clock_(clock), options_(options), opened_(clock.now()) {
    db_.run_script("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA foreign_keys=ON;");
    const int64_t version = number(db_, "PRAGMA user_version");
    if (version == 0) {
      db_.run_script(fmt::format("BEGIN; {} PRAGMA user_version={}; COMMIT;", kSchema, kSchemaVersion));
    } else if (version == 1) {
      db_.run_script(kFromVersion1);
    } else if (version != kSchemaVersion) {
      throw DatabaseError(
          path, fmt::format("it is a run store of version {}, and this program writes version {}", version,
                            kSchemaVersion));
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
    } catch (const DatabaseError& fault) {
      silent_ = true;
      std::fprintf(stderr,
                   "starling: cannot write %s (%s): %s, or choose another folder with --run-dir. No "
                   "further events are stored; training continues\n",
                   path_.c_str(), fault.cause().c_str(), fault.remedy().c_str());
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
    db_.run(
        "INSERT INTO "
        "run(started_at,run_dir,model,data,ranks,threads,global_batch,total_steps,first_step,params,choices,"
        "local_processes,local_cores) "
        "VALUES((julianday('now')-2440587.5)*86400.0,?,?,?,?,?,?,?,?,?,?,?,?)",
        e.run_dir, e.model, e.data, e.ranks, e.threads, e.global_batch, e.total_steps, e.first_step, e.params,
        text_of(nlohmann::json(e.choices)), e.local_processes, known(e.local_cores));
    run_ = db_.last_row();
  }
  void store(const StepDone& e) {
    db_.run("INSERT OR REPLACE INTO step VALUES(?,?,?,?,?,?,?,?,?,?,?,?)", run(), e.step, e.epoch, e.loss,
            e.lr, e.samples_per_s, e.step_s, e.compute_s, e.exposed_comm_s, e.data_wait_s, e.slowest_rank,
            e.eta_s);
  }
  void store(const EvalDone& e) {
    db_.run("INSERT INTO eval VALUES(?,?,?,?,?)", run(), e.step, e.loss, meaningful(e.accuracy), e.samples);
  }
  void store(const CheckpointDone& e) {
    db_.run("INSERT INTO checkpoint VALUES(?,?,?,?,?)", run(), e.step, e.path, e.seconds, e.error);
  }
  void store(const Message& e) {
    const double at = to_seconds(clock_.now() - opened_);
    if (run_ == 0) {
      db_.run("INSERT INTO message VALUES(?,?,?,?,?)", nullptr, at, std::string(name_of(e.severity)), e.rank,
              e.text);
    } else {
      db_.run("INSERT INTO message VALUES(?,?,?,?,?)", run_, at, std::string(name_of(e.severity)), e.rank,
              e.text);
    }
  }
  void store(const RanksLost& e) { store(Message{Severity::kWarning, -1, starling::text_of(e)}); }
  void store(const RunResult& e) {
    db_.run("INSERT INTO result VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", run(), e.model, e.steps, e.ranks,
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
  } catch (const DatabaseError& fault) {
    throw ConfigError("run.dir",
                      fmt::format("cannot open the run store {}: {}{}. Choose another folder with --run-dir",
                                  path, fault.cause(), fault.holder().empty() ? "" : "; " + fault.holder()));
  }
}

std::unique_ptr<EventSink> open_run_store(const std::string& run_dir, const Clock& clock) {
  return std::make_unique<AsyncSink>(open_sqlite_sink(run_dir + "/run.sqlite", clock));
}

}  // namespace starling
