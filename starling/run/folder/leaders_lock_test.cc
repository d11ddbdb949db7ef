#include "starling/run/folder/leaders_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "starling/base/error.h"
#include "starling/testing/error_of.h"
#include "starling/testing/file_size_limit.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::AllOf;
using testing::HasSubstr;

LeadersLock::Take taker(const TempDir& run, const std::string& incarnation = "mine") {
  return [path = run.path(), incarnation] {
    FolderLockOptions options;
    options.grace = std::chrono::milliseconds(50);
    return std::make_unique<FolderLock>(path, incarnation, options);
  };
}

TEST(LeadersLock, ARankThatDoesNotLeadNeedsNone) {
  LeadersLock lock;
  EXPECT_NO_THROW(lock.require());
  EXPECT_FALSE(lock.wanted());
  EXPECT_FALSE(lock.held());
  EXPECT_EQ(lock.epoch(), 0);
}

TEST(LeadersLock, TheFirstLeaderNeedsItAtOnce) {
  const TempDir run;
  LeadersLock lock;
  {
    const FileSizeLimit full(10);
    EXPECT_THAT(error_of([&] { lock.take(taker(run)); }), HasSubstr("No space left on device"));
  }
  EXPECT_FALSE(lock.held());
}

TEST(LeadersLock, OneThatCannotBeWrittenIsTriedAgain) {
  const TempDir run;
  LeadersLock lock;
  {
    const FileSizeLimit full(10);
    EXPECT_THAT(lock.try_take(taker(run)),
                AllOf(HasSubstr("cannot write the lock"), HasSubstr("free space")));
    EXPECT_TRUE(lock.wanted());
    EXPECT_FALSE(lock.held());
    EXPECT_EQ(lock.epoch(), 0);
    EXPECT_THAT(error_of([&] { lock.require(); }), HasSubstr("cannot write the lock"));
  }
  lock.require();
  EXPECT_TRUE(lock.held());
  EXPECT_EQ(lock.epoch(), 1);
  lock.require();
  EXPECT_EQ(lock.epoch(), 1);
}

TEST(LeadersLock, AnotherRunThatHasTheLockIsAnErrorAtOnceAndLater) {
  const TempDir run;
  LeadersLock lock;
  {
    const FileSizeLimit full(10);
    EXPECT_NE(lock.try_take(taker(run)), "");
  }
  LeadersLock other;
  EXPECT_EQ(other.try_take(taker(run, "other")), "");
  EXPECT_THROW(lock.require(), ConfigError);
  EXPECT_THROW(LeadersLock().try_take(taker(run, "third")), ConfigError);
  EXPECT_TRUE(other.held());
  EXPECT_FALSE(lock.held());
}

// While the lock could not be written, another run has used the folder and ended.
TEST(LeadersLock, AFolderThatAnotherRunHasUsedIsNotTakenOver) {
  const TempDir run;
  int attempts = 0;
  const auto survivor = [&] {
    ++attempts;
    FolderLockOptions options;
    options.known = LockHolder{1, "mine"};
    return std::make_unique<FolderLock>(run.path(), "mine", options);
  };
  LeadersLock().take(taker(run));  // the leader that is lost
  LeadersLock lock;
  {
    const FileSizeLimit full(10);
    EXPECT_NE(lock.try_take(survivor), "");
  }
  LeadersLock().take(taker(run, "other"));
  for (int times = 0; times < 2; ++times)
    EXPECT_THAT(error_of([&] { lock.require(); }), HasSubstr("for another run since this run began"));
  EXPECT_EQ(attempts, 2) << "a refusal is final";
  EXPECT_FALSE(lock.held());
  EXPECT_TRUE(std::filesystem::exists(run.path() / "lock" / "epoch-000002"));
  EXPECT_FALSE(std::filesystem::exists(run.path() / "lock" / "epoch-000003"));
}

TEST(LeadersLock, TheFormerLeaderOfTheRunIsReplaced) {
  const TempDir run;
  LeadersLock leader, survivor;
  leader.take(taker(run));
  survivor.take([&] {
    FolderLockOptions options;
    options.known.emplace();
    return std::make_unique<FolderLock>(run.path(), "mine", options);
  });
  EXPECT_TRUE(survivor.held());
  EXPECT_FALSE(leader.held());
}

// The folder of this rank is on another disk than that of the leader. The launcher or an earlier run has left
// its lock here, before this run began.
TEST(LeadersLock, AHolderFromBeforeTheRunIsReplaced) {
  const TempDir run;
  EXPECT_EQ(last_lock_holder(run.path()), LockHolder{});
  LeadersLock().take(taker(run, "launcher"));
  const LockHolder launcher{1, "launcher"};
  EXPECT_EQ(last_lock_holder(run.path()), launcher);
  EXPECT_EQ(ended_lock_holder(run.path()), launcher);
  FolderLockOptions options;
  options.known = launcher;
  const FolderLock survivor(run.path(), "mine", options);
  EXPECT_TRUE(survivor.held());
  EXPECT_EQ(survivor.epoch(), 2);
  EXPECT_EQ(last_lock_holder(run.path()), (LockHolder{2, "mine"}));
  EXPECT_EQ(ended_lock_holder(run.path()), LockHolder{});  // it may write into the folder after the look
}

// A user has deleted the folder, and another run has used it since. Its epochs begin at 1 again.
TEST(LeadersLock, AHolderOfAKnownEpochMayBeOfAnotherRun) {
  const TempDir run;
  FolderLockOptions options;
  options.known = LockHolder{1, "launcher"};
  LeadersLock().take(taker(run, "other"));
  EXPECT_THROW(FolderLock(run.path(), "mine", options), ConfigError);
  EXPECT_EQ(last_lock_holder(run.path()), (LockHolder{1, "other"}));
}

TEST(LeadersLock, AFolderOfLocksThatCannotBeListedIsNotFree) {
  const TempDir run;
  LeadersLock lock;
  lock.take(taker(run));
  std::filesystem::rename(run.path() / "lock", run.path() / "kept");
  std::filesystem::create_symlink("lock", run.path() / "lock");  // opendir() fails with ELOOP
  EXPECT_THAT(error_of([&] { last_lock_holder(run.path()); }), HasSubstr("lock: cannot be read: "));
  EXPECT_EQ(ended_lock_holder(run.path()), LockHolder{});
  EXPECT_TRUE(lock.held());
  EXPECT_NO_THROW(lock.require());
}

TEST(LeadersLock, TheErrorTellsAnotherRunFromAnotherRank) {
  for (const bool same : {true, false}) {
    const TempDir run;
    FolderLock former(run.path(), "mine");
    std::filesystem::remove_all(run.path() / "lock");
    const FolderLock next(run.path(), same ? "mine" : "other");
    try {
      former.require();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("does not hold the folder any more"));
      EXPECT_EQ(error.code(), same ? ErrorCode::kCheckpoint : ErrorCode::kConfig);
    }
  }
}

TEST(LeadersLock, AHolderThatCannotBeReadMayBeAnotherRunAndIsTriedAgain) {
  const TempDir run;
  const std::filesystem::path file = run.path() / "lock" / "epoch-000001";
  std::filesystem::create_directories(file);
  LeadersLock survivor;
  EXPECT_THAT(survivor.try_take([&] {
    FolderLockOptions options;
    options.known.emplace();
    return std::make_unique<FolderLock>(run.path(), "mine", options);
  }),
              HasSubstr("cannot be read"));
  std::filesystem::remove(file);
  survivor.require();
  EXPECT_TRUE(survivor.held());
}

TEST(LeadersLock, ALockThatAnotherTookOverIsNotTakenBack) {
  const TempDir run;
  LeadersLock former, next;
  former.take(taker(run));
  next.take(taker(run));
  EXPECT_FALSE(former.held());
  EXPECT_THAT(error_of([&] { former.require(); }), HasSubstr("does not hold the folder any more"));
  EXPECT_TRUE(next.held());
}

}  // namespace
}  // namespace starling
