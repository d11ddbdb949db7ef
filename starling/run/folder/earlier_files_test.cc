#include "starling/run/folder/earlier_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "starling/testing/error_of.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> sorted_names(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

void leave_files(const fs::path& run, bool checkpoint) {
  for (const char* name : {"events.jsonl", "run.sqlite", "run.sqlite-wal", "timeline.json", "notes.txt"})
    write_bytes(run / name, "earlier");
  if (checkpoint) fs::create_directories(run / "checkpoints" / "step-000010");
}

TEST(EarlierFiles, ANameThatCannotBeLookedUpIsAnError) {
  const TempDir run;
  leave_files(run.path(), false);
  fs::create_symlink("run.1.sqlite", run.path() / "run.1.sqlite");  // stat() fails with ELOOP
  EXPECT_THAT(error_of([&] { set_aside_earlier_files(run.path(), "auto"); }),
              HasSubstr("run.1.sqlite: cannot tell whether it exists"));
  EXPECT_TRUE(fs::exists(run.path() / "events.jsonl"));
}

TEST(EarlierFiles, GetOneNumber) {
  const TempDir run;
  EXPECT_EQ(set_aside_earlier_files(run.path(), "auto"), "");
  leave_files(run.path(), false);
  write_bytes(run.path() / "run.1.sqlite", "of a run before");
  EXPECT_THAT(set_aside_earlier_files(run.path(), "auto"), HasSubstr("events.2.jsonl, run.2.sqlite"));
  EXPECT_THAT(sorted_names(run.path()), ElementsAre("events.2.jsonl", "notes.txt", "run.1.sqlite",
                                                    "run.2.sqlite", "run.2.sqlite-wal", "timeline.2.json"));
  EXPECT_EQ(read_bytes(run.path() / "run.1.sqlite"), "of a run before");
}

TEST(EarlierFiles, TheConfigurationIsCopiedIfAnythingElseIsThere) {
  const TempDir run;
  write_bytes(run.path() / "config.toml", "of the run");
  EXPECT_EQ(set_aside_earlier_files(run.path(), "auto"), "");
  write_bytes(run.path() / "model.safetensors", "weights");
  write_bytes(run.path() / "result.json", "{}");
  EXPECT_THAT(set_aside_earlier_files(run.path(), "auto"), HasSubstr("config.1.toml"));
  EXPECT_THAT(sorted_names(run.path()),
              ElementsAre("config.1.toml", "config.toml", "model.1.safetensors", "result.1.json"));
}

TEST(EarlierFiles, StayIfTheRunContinues) {
  const TempDir run, other;
  leave_files(run.path(), true);
  const auto before = sorted_names(run.path());
  for (const fs::path& path :
       {run.path(), run.path() / "checkpoints" / "step-000010", run.path() / "checkpoints/."})
    EXPECT_EQ(set_aside_earlier_files(run.path(), path.string()), "") << path;
  EXPECT_EQ(set_aside_earlier_files(run.path(), "auto"), "");
  EXPECT_EQ(sorted_names(run.path()), before);
  EXPECT_THAT(set_aside_earlier_files(run.path(), other.path().string()), HasSubstr("checkpoints.1"));
  leave_files(run.path(), true);
  EXPECT_THAT(set_aside_earlier_files(run.path(), "never"), HasSubstr("checkpoints.2"));
  EXPECT_TRUE(fs::exists(run.path() / "checkpoints.2" / "step-000010"));
}

TEST(EarlierFiles, StayIfTheCheckpointsAreBehindALink) {
  const TempDir run, disk;
  leave_files(run.path(), false);
  fs::create_directories(disk.path() / "step-000010");
  fs::create_directory_symlink(disk.path(), run.path() / "checkpoints");
  for (const fs::path& path : {run.path() / "checkpoints", run.path() / "checkpoints" / "step-000010",
                               disk.path() / "step-000010"}) {
    EXPECT_TRUE(is_inside_run(run.path(), path)) << path;
    EXPECT_EQ(set_aside_earlier_files(run.path(), path.string()), "") << path;
  }
  EXPECT_FALSE(is_inside_run(run.path(), disk.path().parent_path()));
  for (const fs::path& path : {run.path(), run.path() / "log" / "new" / "x", disk.path() / "x"})
    EXPECT_TRUE(is_below_run(run.path(), path)) << path;
  EXPECT_FALSE(is_below_run(run.path(), disk.path().parent_path() / "x"));
  EXPECT_FALSE(is_below_run(run.path(), run.path() / ".." / "x"));
}

TEST(EarlierFiles, AnEmptyFolderOfCheckpointsStays) {
  const TempDir run;
  fs::create_directory(run.path() / "checkpoints");
  for (const char* resume : {"auto", "never"}) EXPECT_EQ(set_aside_earlier_files(run.path(), resume), "");
  EXPECT_THAT(sorted_names(run.path()), ElementsAre("checkpoints"));
}

// With renamed checkpoints alone, the run would begin at step 0 without a word.
TEST(EarlierFiles, RenamedCheckpointsAloneAreAnError) {
  const TempDir run;
  leave_files(run.path(), false);
  for (const char* name : {"damaged-step-000020", "aside-step-000010.2", ".old-step-000030"})
    fs::create_directories(run.path() / "checkpoints" / name);
  const auto before = sorted_names(run.path());
  EXPECT_THAT(error_of([&] { set_aside_earlier_files(run.path(), "auto"); }),
              testing::AllOf(HasSubstr("aside-step-000010.2, damaged-step-000020. Give"),
                             HasSubstr((run.path() / "checkpoints").string()), HasSubstr("--resume never")));
  EXPECT_EQ(sorted_names(run.path()), before);
  EXPECT_THAT(set_aside_earlier_files(run.path(), "never"), HasSubstr("checkpoints.1"));
}

}  // namespace
}  // namespace starling
