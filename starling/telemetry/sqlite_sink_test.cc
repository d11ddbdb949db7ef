#include "starling/telemetry/sqlite_sink.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "starling/base/error.h"

namespace starling {
namespace {

using testing::HasSubstr;

class RunStore : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "run_store_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  // Returns every row as "a|b|…", separated by newlines. The query uses its own connection.
  std::string query(const std::string& sql) {
    sqlite3* db = nullptr;
    EXPECT_EQ(sqlite3_open_v2((dir_ + "/run.sqlite").c_str(), &db, SQLITE_OPEN_READWRITE, nullptr),
              SQLITE_OK);
    std::string out;
    const auto row = [](void* to, int columns, char** values, char**) {
      auto& text = *static_cast<std::string*>(to);
      if (!text.empty()) text += '\n';
      for (int i = 0; i < columns; ++i) text += std::string(i ? "|" : "") + (values[i] ? values[i] : "NULL");
      return 0;
    };
    char* error = nullptr;
    EXPECT_EQ(sqlite3_exec(db, sql.c_str(), row, &out, &error), SQLITE_OK) << (error ? error : "");
    sqlite3_free(error);
    sqlite3_close(db);
    return out;
  }

  static StepDone step(int64_t n) {
    StepDone e;
    e.step = n;
    e.loss = 1.0 / static_cast<double>(n);
    return e;
  }

  std::string dir_;
  SystemClock clock_;
};

// A process that was stopped within a transaction keeps the database locked.
TEST_F(RunStore, NamesAStoppedProcessThatHoldsTheLock) {
  const std::string path = dir_ + "/run.sqlite";
  open_sqlite_sink(path, clock_).reset();
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const pid_t holder = fork();
  if (holder == 0) {
    sqlite3* db = nullptr;
    sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READWRITE, nullptr);
    const bool locked = sqlite3_exec(db, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr) == SQLITE_OK;
    [[maybe_unused]] const ssize_t n = write(ready[1], locked ? "y" : "n", 1);
    for (;;) raise(SIGSTOP);
  }
  char locked = 0;
  ASSERT_EQ(read(ready[0], &locked, 1), 1);
  EXPECT_EQ(locked, 'y');
  int status = 0;
  ASSERT_EQ(waitpid(holder, &status, WUNTRACED), holder);
  EXPECT_TRUE(WIFSTOPPED(status));
  testing::internal::CaptureStderr();
  {
    auto sink = open_sqlite_sink(path, clock_);
    sink->emit(step(1));
    sink->flush();
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("database is locked"));
  EXPECT_THAT(said, HasSubstr("process " + std::to_string(holder) + ", which is stopped, holds its lock"));
  EXPECT_THAT(said, HasSubstr("kill -CONT " + std::to_string(holder)));
  kill(holder, SIGKILL);
  waitpid(holder, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(RunStore, HoldsEveryKindOfEvent) {
  {
    auto sink = open_sqlite_sink(dir_ + "/run.sqlite", clock_);
    sink->emit(Message{Severity::kInfo, -1, "before the run"});
    RunStarted start;
    start.model = "lenet5";
    start.ranks = 2;
    start.choices = {{"gemm", "onednn"}};
    start.local_processes = 3;
    sink->emit(start);
    sink->emit(step(1));
    sink->emit(step(2));
    sink->emit(EvalDone{2, 0.25, -1, 10});
    sink->emit(CheckpointDone{2, "ckpt/2", 0.5, ""});
    sink->emit(Message{Severity::kWarning, 1, "slow"});
    RunResult result;
    result.steps = 2;
    result.peak_rss_mb = {100, 200};
    sink->emit(result);
  }
  EXPECT_EQ(query("SELECT id, model, ranks, choices FROM run"), "1|lenet5|2|{\"gemm\":\"onednn\"}");
  EXPECT_EQ(query("SELECT local_processes, local_cores FROM run"), "3|NULL");
  EXPECT_EQ(query("SELECT run, step, loss FROM step ORDER BY step"), "1|1|1.0\n1|2|0.5");
  EXPECT_EQ(query("SELECT step, loss, accuracy FROM eval"), "2|0.25|NULL");
  EXPECT_EQ(query("SELECT step, path FROM checkpoint"), "2|ckpt/2");
  EXPECT_EQ(query("SELECT run, severity, rank, text FROM message ORDER BY at"),
            "NULL|info|-1|before the run\n1|warning|1|slow");
  EXPECT_EQ(query("SELECT steps, test_accuracy, peak_rss_mb FROM result"), "2|NULL|[100.0,200.0]");
  EXPECT_EQ(query("PRAGMA journal_mode"), "wal");
  EXPECT_EQ(query("SELECT abs(started_at - strftime('%s','now')) < 3600 FROM run"), "1");
}

TEST_F(RunStore, OthersSeeWhatWasFlushedWhileTheRunWrites) {
  auto sink = open_run_store(dir_, clock_);
  sink->emit(RunStarted{});
  for (int n = 1; n <= 1000; ++n) sink->emit(step(n));
  sink->flush();
  EXPECT_EQ(query("SELECT count(*), max(step) FROM step"), "1000|1000");
}

TEST_F(RunStore, AResumedRunIsASecondRun) {
  for (int i = 0; i < 2; ++i) {
    auto sink = open_sqlite_sink(dir_ + "/run.sqlite", clock_);
    sink->emit(RunStarted{});
    sink->emit(step(5));
    sink->emit(step(5));  // a repeated step replaces its row
  }
  EXPECT_EQ(query("SELECT run, step FROM step"), "1|5\n2|5");
}

TEST_F(RunStore, AFileOfAnotherKindIsRefused) {
  std::ofstream(dir_ + "/run.sqlite") << "this is no data base, however long the text in it may be";
  EXPECT_THROW(open_sqlite_sink(dir_ + "/run.sqlite", clock_), ConfigError);
  EXPECT_THROW(open_sqlite_sink(dir_ + "/missing/run.sqlite", clock_), ConfigError);
}

TEST_F(RunStore, AFileOfAnotherVersionIsRefused) {
  {
    auto sink = open_sqlite_sink(dir_ + "/run.sqlite", clock_);
  }
  query("PRAGMA user_version=99");
  try {
    open_sqlite_sink(dir_ + "/run.sqlite", clock_);
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), HasSubstr("version 99"));
  }
}

TEST_F(RunStore, AFileOfVersionOneGetsTheColumnsThatItLacks) {
  {
    auto sink = open_sqlite_sink(dir_ + "/run.sqlite", clock_);
    sink->emit(RunStarted{});
  }
  query("ALTER TABLE run DROP COLUMN local_processes");
  query("ALTER TABLE run DROP COLUMN local_cores");
  query("PRAGMA user_version=1");
  {
    auto sink = open_sqlite_sink(dir_ + "/run.sqlite", clock_);
    RunStarted start;
    start.local_processes = 4;
    start.local_cores = 2;
    sink->emit(start);
  }
  EXPECT_EQ(query("SELECT id, local_processes, local_cores FROM run"), "1|NULL|NULL\n2|4|2");
  EXPECT_EQ(query("PRAGMA user_version"), "2");
}

TEST_F(RunStore, AFaultWhileWritingEndsTheStoreNotTheRun) {
  auto sink = open_sqlite_sink(dir_ + "/run.sqlite", clock_);
  query("DROP TABLE step");
  testing::internal::CaptureStderr();
  sink->emit(RunStarted{});
  sink->emit(step(1));
  sink->emit(step(2));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("No further events are stored; training continues"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
}

}  // namespace
}  // namespace starling
