#include "starling/net/security/job_key.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "starling/base/error.h"

namespace starling {
namespace {

class JobKeyFile : public testing::Test {
 protected:
  JobKeyFile() {
    std::string name = (std::filesystem::temp_directory_path() / "starling-key-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    folder_ = name;
    path_ = folder_ / "job.key";
  }
  ~JobKeyFile() override { std::filesystem::remove_all(folder_); }

  std::string refusal() const {
    try {
      read_job_key_file(path_);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  }

  void write(const std::string& text) const {
    std::ofstream(path_) << text;
    ASSERT_EQ(::chmod(path_.c_str(), 0600), 0);
  }

  std::filesystem::path folder_;
  std::string path_;
};

bool same(const JobKey& a, const JobKey& b) {
  return std::ranges::equal(a.bytes(), b.bytes());
}

TEST_F(JobKeyFile, RoundTripsWithMode0600) {
  const JobKey key = make_job_key();
  const mode_t old = ::umask(0);
  write_job_key_file(path_, key);
  ::umask(old);
  struct stat info;
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_TRUE(same(read_job_key_file(path_), key));
  EXPECT_FALSE(same(make_job_key(), key));
  EXPECT_THROW(write_job_key_file(path_, key), ConfigError);
}

TEST_F(JobKeyFile, RefusesAFileThatOthersCanUse) {
  write_job_key_file(path_, make_job_key());
  for (const mode_t mode : {0640, 0604, 0620, 0601}) {
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
    EXPECT_NE(refusal().find("chmod 600 " + path_), std::string::npos) << refusal();
  }
}

TEST_F(JobKeyFile, RefusesAFileOfAnotherUser) {
  write_job_key_file(path_, make_job_key());
  if (::chown(path_.c_str(), ::geteuid() + 1, static_cast<gid_t>(-1)) != 0) {
    // This process is not root. This file certainly belongs to another user.
    ASSERT_THROW(read_job_key_file("/etc/passwd"), ConfigError);
    return;
  }
  EXPECT_NE(refusal().find("belongs to user"), std::string::npos) << refusal();
}

TEST_F(JobKeyFile, RefusesWhatIsNoKey) {
  EXPECT_NE(refusal().find("cannot be opened"), std::string::npos);
  write("");
  EXPECT_NE(refusal().find("64 hexadecimal digits"), std::string::npos);
  write(std::string(63, 'a'));
  EXPECT_NE(refusal(), "");
  write(std::string(66, 'a'));
  EXPECT_NE(refusal(), "");
  write(std::string(63, 'a') + "g");
  EXPECT_NE(refusal(), "");
  path_ = folder_;
  EXPECT_NE(refusal().find("regular file"), std::string::npos) << refusal();
}

TEST(JobKeyFd, RoundTripsOnce) {
  const JobKey key = make_job_key();
  UniqueFd fd = make_job_key_fd(key);
  const int again = ::dup(fd.get());
  EXPECT_TRUE(same(read_job_key_fd(fd.release()), key));
  EXPECT_THROW(read_job_key_fd(again), ConfigError);  // the shared position is at the end
}

TEST(JobKeyFd, ReadsFromAPipe) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const JobKey key = make_job_key();
  ASSERT_EQ(::write(ends[1], key.bytes().data(), JobKey::kBytes), static_cast<ssize_t>(JobKey::kBytes));
  ::close(ends[1]);
  EXPECT_TRUE(same(read_job_key_fd(ends[0]), key));
  EXPECT_THROW(read_job_key_fd(-1), ConfigError);
}

}  // namespace
}  // namespace starling
