#include "starling/base/read_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

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
  EXPECT_EQ(read_file(folder_.string()).error, EISDIR);
  EXPECT_EQ(read_file_or_pipe(folder_.string()).error, EISDIR);  // open() succeeds, and read() fails
}

// A pipe without a writer would be waited for.
TEST_F(ReadFile, APipeOrADeviceIsNoRegularFile) {
  const std::string pipe = (folder_ / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(read_file(pipe).error, FileText::kNotRegular);
  EXPECT_EQ(read_file(pipe).reason(), "it is not a regular file");
  EXPECT_EQ(read_file("/dev/zero").error, FileText::kNotRegular);
}

TEST_F(ReadFile, APipeIsReadUpToTheLimit) {
  const std::string pipe = (folder_ / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const size_t limit : {4, 3}) {
    std::thread writer([&] { std::ofstream(pipe) << "text"; });
    const FileText file = read_file_or_pipe(pipe, limit);
    writer.join();
    EXPECT_EQ(file.error, limit == 4 ? 0 : EFBIG);
    EXPECT_EQ(file.text, limit == 4 ? "text" : "");
  }
  EXPECT_EQ(read_file_or_pipe("/dev/zero", 1 << 20).error, EFBIG);
}

}  // namespace
}  // namespace starling
