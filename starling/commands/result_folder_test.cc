#include "starling/commands/result_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/testing/run_ranks.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::HasSubstr;

// Makes a folder on two ranks. The second rank has another name for it, as if it were on another host.
// Returns the message of the error that both ranks throw, or "".
std::string made_by_two(const std::string& folder, const std::string& second) {
  std::string faults[2];
  run_ranks(2, [&](const ThreadRank& self) {
    GroupSetup setup;
    setup.rank = self.rank, setup.size = 2;
    const auto group = make_group(*self.store, setup);
    try {
      make_result_folder(*group, "--save", self.rank == 0 ? folder : second);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfig);
      faults[self.rank] = error.what();
    }
  });
  EXPECT_EQ(faults[0], faults[1]);
  return faults[0];
}

std::string made_by_two(const std::string& folder) {
  return made_by_two(folder, folder);
}

TEST(ResultFolder, MustBeOneFolderForAllRanks) {
  const TempDir dir;
  EXPECT_THAT(made_by_two(dir.file("a"), dir.file("b")),
              testing::AllOf(HasSubstr("rank 1 does not see in"), HasSubstr("all hosts share")));
  EXPECT_TRUE(std::filesystem::is_empty(dir.file("a")));
}

TEST(ResultFolder, TheLastFolderIsMadeAndLeftEmpty) {
  const TempDir dir;
  for (const char* name : {"out", "slash/"}) {
    const std::string folder = dir.file(name);
    EXPECT_NO_THROW(check_result_folder("--save", folder));
    EXPECT_FALSE(std::filesystem::exists(folder));
    EXPECT_EQ(made_by_two(folder), "");
    EXPECT_EQ(made_by_two(folder), "");  // it exists now
    EXPECT_TRUE(std::filesystem::is_empty(folder));
  }
  EXPECT_EQ(made_by_two(""), "");
}

TEST(ResultFolder, WhatCannotBeMadeIsRefusedWithItsReason) {
  const TempDir dir;
  std::ofstream(dir.file("file")) << "x";
  for (const auto& [folder, reason] : {std::pair{dir.file("file"), "file is not a folder"},
                                       {dir.file("no/out"), "no is not a folder; make"},
                                       {dir.file("file/out"), "file is not a folder"},
                                       {std::string("/proc/out"), "No such file"}}) {
    EXPECT_THAT(made_by_two(folder), HasSubstr("--save: ")) << folder;
    EXPECT_THAT(made_by_two(folder), HasSubstr(reason)) << folder;
  }
  EXPECT_THROW(check_result_folder("--save", dir.file("file")), ConfigError);
  EXPECT_THROW(check_result_folder("--save", dir.file("no/out")), ConfigError);
}

}  // namespace
}  // namespace starling
