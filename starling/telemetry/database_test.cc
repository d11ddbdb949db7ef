#include "starling/telemetry/database.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <string>

#include "starling/testing/file_size_limit.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::HasSubstr;

int64_t number_of_rows(Database& db) {
  Statement rows = db.query("SELECT COUNT(*) FROM t");
  return rows.next() ? rows.integer(0) : -1;
}

class DatabaseTest : public testing::Test {
 protected:
  const TempDir dir_;
  const std::string path_ = dir_.file("test.sqlite");
};

TEST_F(DatabaseTest, AFailedWriteNamesTheErrorOfTheSystemAndThePath) {
  for (const std::string mode : {"DELETE", "WAL"}) {
    Database db(dir_.file(mode), true);
    db.run_script("PRAGMA journal_mode=" + mode + "; CREATE TABLE t(x TEXT)");
    const FileSizeLimit limit(100'000);
    try {
      db.run("INSERT INTO t VALUES(?)", std::string(200'000, 'x'));
      FAIL() << "a file grew beyond its limit";
    } catch (const DatabaseError& error) {
      EXPECT_EQ(error.cause(), "disk I/O error (File too large)") << mode;
      EXPECT_THAT(error.what(), HasSubstr(dir_.file(mode)));
      EXPECT_EQ(error.holder(), "");
    }
  }
}

TEST_F(DatabaseTest, AValueThatSqliteRefusesIsAnError) {
  Database db(path_, true);
  db.run_script("CREATE TABLE t(x)");
  try {
    db.run("INSERT INTO t VALUES(?)", 1, 2);  // the second value has no place
    FAIL() << "a value was dropped";
  } catch (const DatabaseError& error) {
    EXPECT_THAT(error.what(), HasSubstr(path_ + ": a value cannot be stored (column index out of range)"));
  }
  EXPECT_EQ(number_of_rows(db), 0);
  EXPECT_EQ(db.run("INSERT INTO t VALUES(?)", 3), 1) << "the connection goes on";
  EXPECT_EQ(number_of_rows(db), 1);
}

TEST_F(DatabaseTest, ARemedyFitsItsCause) {
  EXPECT_EQ(DatabaseError("p", "database or disk is full").remedy(), "free space");
  EXPECT_EQ(DatabaseError("p", "disk I/O error (No space left on device)").remedy(), "free space");
  EXPECT_THAT(DatabaseError("p", "attempt to write a readonly database").remedy(),
              HasSubstr("the file is yours"));
  EXPECT_EQ(DatabaseError("p", "database is locked", "end process 7").remedy(), "end process 7");
}

TEST_F(DatabaseTest, AMissingFolderIsNamed) {
  try {
    const Database db(dir_.file("missing/test.sqlite"), true);
    FAIL() << "a database without a folder was opened";
  } catch (const DatabaseError& error) {
    EXPECT_THAT(error.cause(), HasSubstr("No such file or directory"));
  }
}

TEST_F(DatabaseTest, ALockedDatabaseIsBusyUntilItsPatienceEnds) {
  Database first(path_, true);
  first.run_script("CREATE TABLE t(x INTEGER)");
  Database second(path_, false, std::chrono::milliseconds(1));
  {
    Transaction write(first);
    EXPECT_THROW(second.run("INSERT INTO t VALUES(?)", 1), DatabaseBusy);
  }
  EXPECT_EQ(second.run("INSERT INTO t VALUES(?)", 2), 1);
}

TEST_F(DatabaseTest, NaNAndNullAreStoredAsNull) {
  Database db(path_, true);
  db.run_script("CREATE TABLE t(x REAL, y TEXT)");
  db.run("INSERT INTO t VALUES(?,?)", std::nan(""), nullptr);
  db.run("INSERT INTO t VALUES(?,?)", 0.5, std::string("word"));
  Statement rows = db.query("SELECT x IS NULL, y IS NULL, x, y FROM t ORDER BY rowid");
  ASSERT_TRUE(rows.next());
  EXPECT_EQ(rows.integer(0), 1);
  EXPECT_EQ(rows.integer(1), 1);
  ASSERT_TRUE(rows.next());
  EXPECT_EQ(rows.integer(0), 0);
  EXPECT_EQ(rows.real(2), 0.5);
  EXPECT_EQ(rows.text(3), "word");
  EXPECT_FALSE(rows.next());
}

TEST_F(DatabaseTest, ATransactionWithoutCommitIsUndone) {
  Database db(path_, true);
  db.run_script("CREATE TABLE t(x INTEGER)");
  {
    Transaction undone(db);
    db.run("INSERT INTO t VALUES(?)", 1);
  }
  {
    Transaction kept(db);
    db.run("INSERT INTO t VALUES(?)", 2);
    kept.commit();
  }
  Statement rows = db.query("SELECT COUNT(*), SUM(x) FROM t");
  ASSERT_TRUE(rows.next());
  EXPECT_EQ(rows.integer(0), 1);
  EXPECT_EQ(rows.integer(1), 2);
}

}  // namespace
}  // namespace starling
