// Tests of the file that keeps tuned algorithms.
#include "starling/run/folder/tuning_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "starling/base/error.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

TEST(TuningFile, OnlyThatOfRankZeroHasToBeWhole) {
  const TempDir folder;
  const std::filesystem::path file = folder.path() / "tuning";
  EXPECT_EQ(tuning_for(0, file), Tuning().text());
  std::ofstream(file) << "a line of another version\n";
  EXPECT_THROW(tuning_for(0, file), ConfigError);
  EXPECT_EQ(tuning_for(1, file), "");
}

}  // namespace
}  // namespace starling
