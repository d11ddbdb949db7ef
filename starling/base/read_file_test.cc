#include "starling/base/read_file.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace starling {
namespace {

namespace fs = std::filesystem;

class ReadFile : public testing::Test {
 protected:
  ReadFile() {
    std::string name = (fs::temp_directory_path() / "starling-read-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~ReadFile() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_F(ReadFile, ReturnsTheWholeContent) {
  std::string text(10'000, 'x');
  text[4096] = '\0';
  std::ofstream(folder_ / "file", std::ios::binary) << text;
  const FileText file = read_file((folder_ / "file").string());
  EXPECT_EQ(file.error, 0);
  EXPECT_EQ(file.text, text);
  std::ofstream(folder_ / "empty").close();
  EXPECT_EQ(read_file((folder_ / "empty").string()).error, 0);
}

TEST_F(ReadFile, ReturnsTheReasonOfAFailure) {
  EXPECT_EQ(read_file((folder_ / "none").string()).error, ENOENT);
  EXPECT_EQ(read_file(folder_.string()).error, EISDIR);  // open() succeeds, and read() fails
}

}  // namespace
}  // namespace starling
