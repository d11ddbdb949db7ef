#include "starling/telemetry/sqlite_sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
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

  // Every row as "a|b|…", rows separated by newlines, read over a connection of its own.
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

TEST_F(RunStore, HoldsEveryKindOfEvent) {
  {
    auto sink = open_sqlite_sink(dir_ + "/run.sqlite", clock_);
    sink->emit(Message{Severity::kInfo, -1, "before the run"});
    RunStarted start;
    start.model = "lenet5";
    start.ranks = 2;
    start.choices = {{"gemm", "onednn"}};
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
    sink->emit(step(5));  // the same update again replaces its row
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

TEST_F(RunStore, AFaultWhileWritingEndsTheStoreNotTheRun) {
  auto sink = open_sqlite_sink(dir_ + "/run.sqlite", clock_);
  query("DROP TABLE step");
  testing::internal::CaptureStderr();
  sink->emit(RunStarted{});
  sink->emit(step(1));
  sink->emit(step(2));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("the run store ends here, training goes on"));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
}

}  // namespace
}  // namespace starling
