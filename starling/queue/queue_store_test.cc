#include "starling/queue/queue_store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "starling/base/error.h"
#include "starling/queue/keeper.h"
#include "starling/queue/queue_folder.h"
#include "starling/telemetry/database.h"
#include "starling/testing/error_of.h"
#include "starling/testing/temp_dir.h"

namespace starling {
namespace {

using testing::HasSubstr;

JobRecord small_job(int slots = 1, const std::string& user = "ada") {
  JobRecord job;
  job.user = user;
  job.slots = slots;
  job.words = {"true", "a b", "\"", "\u00fc"};
  job.folder = "/tmp";
  job.environment = {"A=1"};
  return job;
}

class QueueStoreTest : public testing::Test {
 protected:
  QueueStoreTest() : store_(dir_.file("q.sqlite"), true) {
    store_.put_settings(
        {.hosts = {{"a", 2}, {"b", 2}}, .users = parse_queue_users("ada:2,bert:1:5"), .half_life_s = 3600});
  }
  JobRecord job(int64_t id) { return store_.job(id).value(); }

  TempDir dir_;
  QueueStore store_;
};

TEST_F(QueueStoreTest, ARowThatIsNoJsonIsNamed) {
  const int64_t id = store_.submit(small_job(), 100);
  Database file(dir_.file("q.sqlite"), false);
  file.run_script("UPDATE job SET hosts='{'");
  EXPECT_THAT(error_of([&] { store_.job(id); }),
              HasSubstr("the queue's file is damaged: job 1 cannot be read"));
  file.run_script("UPDATE setting SET value='[' WHERE name='users'");
  EXPECT_THAT(error_of([&] { store_.settings(); }), HasSubstr("the setting users cannot be read"));
}

TEST_F(QueueStoreTest, KeepsAJobOverAReopening) {
  const int64_t id = store_.submit(small_job(), 100);
  QueueStore again(dir_.file("q.sqlite"), false);
  const JobRecord shown = again.job(id).value();
  EXPECT_EQ(shown.user, "ada");
  EXPECT_EQ(shown.words, small_job().words);
  EXPECT_TRUE(again.active().front().words.empty());
  EXPECT_EQ(shown.environment, small_job().environment);
  EXPECT_EQ(shown.state, QueueJobState::kQueued);
  EXPECT_EQ(shown.queued_s, 100);
  EXPECT_EQ(again.settings().users.at("ada").share, 2);
  EXPECT_EQ(again.settings().users.at("bert").most_priority, 5);
  EXPECT_EQ(again.settings().hosts[1].slots, 2);
}

TEST_F(QueueStoreTest, ATransitionHappensOnceAndIsCharged) {
  const int64_t id = store_.submit(small_job(), 100);
  const JobRecord before = job(id);
  JobRecord after = before;
  after.state = QueueJobState::kRunning;
  after.attempt = 1;
  after.started_s = 200;
  after.hosts = {{"a", 1}};
  after.local_slots = {1};
  EXPECT_TRUE(store_.move(before, after, 200, "attempt 1"));
  EXPECT_FALSE(store_.move(before, after, 200, "attempt 1"));  // it is not queued any more
  EXPECT_EQ(job(id).local_slots, std::vector<int>{1});
  JobRecord ended = after;
  ended.state = QueueJobState::kDone;
  ended.ran_s = 10;
  EXPECT_TRUE(store_.move(after, ended, 210, "done"));
  EXPECT_NEAR(store_.usage().at("ada").amount, usage_of(1, 200, 210, 3600), 1e-9);
  EXPECT_EQ(store_.log(id).size(), 3U);
  EXPECT_EQ(store_.log(id)[1].from, "queued");
  EXPECT_EQ(store_.log(id)[2].why, "done");
  EXPECT_TRUE(store_.active().empty());
}

TEST_F(QueueStoreTest, AQueuedJobIsCancelledAtOnceAndARunningOneIsAsked) {
  const int64_t first = store_.submit(small_job(), 1), second = store_.submit(small_job(), 1);
  EXPECT_EQ(store_.cancel(first, 2), QueueJobState::kQueued);
  EXPECT_EQ(job(first).state, QueueJobState::kCancelled);
  JobRecord after = job(second);
  after.state = QueueJobState::kRunning;
  store_.move(job(second), after, 2, "");
  EXPECT_EQ(store_.cancel(second, 3), QueueJobState::kRunning);
  EXPECT_EQ(job(second).state, QueueJobState::kRunning);
  EXPECT_TRUE(job(second).cancel_asked);
  EXPECT_THROW(store_.cancel(99, 3), ConfigError);
}

TEST_F(QueueStoreTest, RefusesWhatCannotBe) {
  EXPECT_THAT(error_of<ConfigError>([&] { store_.submit(small_job(5), 1); }), HasSubstr("needs 5 slots"));
  EXPECT_THAT(error_of<ConfigError>([&] { store_.submit(small_job(1, "eve"), 1); }),
              HasSubstr("eve has no share"));
  JobRecord urgent = small_job();
  urgent.priority = 1;
  EXPECT_THAT(error_of<ConfigError>([&] { store_.submit(urgent, 1); }), HasSubstr("largest priority of ada"));
  JobRecord strange = small_job();
  strange.words.push_back("\xff");
  EXPECT_THAT(error_of<ConfigError>([&] { store_.submit(strange, 1); }), HasSubstr("not UTF-8"));
  strange = small_job();
  strange.environment.push_back("STRANGE=\xff");
  EXPECT_THAT(error_of<ConfigError>([&] { store_.submit(strange, 1); }),
              HasSubstr("variable STRANGE is not UTF-8"));
  EXPECT_TRUE(store_.all().empty());
  store_.submit(small_job(4), 1);
  EXPECT_THAT(error_of<ConfigError>([&] { store_.put_settings({.hosts = {{"a", 3}}, .users = {}}); }),
              HasSubstr("needs 4 slots, and the hosts have 3"));
  EXPECT_THAT(error_of<ConfigError>([&] { QueueStore(dir_.file("absent"), false); }),
              HasSubstr("does not exist"));
  for (const char* users :
       {"ada:0", "ada:", "ada:x", ":1", "ada,ada", "ada:1:x", "ada:1:", "ada:-1", "ada:inf"})
    EXPECT_THROW(parse_queue_users(users), ConfigError) << users;
}

TEST_F(QueueStoreTest, HostsStayWhileAJobHoldsSlots) {
  const int64_t id = store_.submit(small_job(), 1);
  JobRecord after = job(id);
  after.state = QueueJobState::kRunning;
  store_.move(job(id), after, 2, "");
  EXPECT_THAT(error_of<ConfigError>([&] { store_.put_settings({.hosts = {{"a", 4}}, .users = {}}); }),
              HasSubstr("--hosts a:2,b:2"));
  store_.put_settings({.hosts = {{"a", 2}, {"b", 2}}, .users = {}});
}

TEST(QueueFolders, BelongToOneAccountAndOneDaemon) {
  const TempDir dir;
  const QueueFolder folder(dir.file("q"), true);
  struct stat info{};
  ASSERT_EQ(::stat(folder.path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
  const DaemonLock lock(folder);
  const pid_t other = ::fork();
  if (other == 0) {
    try {
      const DaemonLock second(folder);
    } catch (const ConfigError& error) {
      ::_exit(std::string(error.what()).find(std::to_string(::getppid())) != std::string::npos ? 7 : 8);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(other, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  ::chmod(folder.path().c_str(), 0750);
  EXPECT_THAT(error_of<ConfigError>([&] { QueueFolder(dir.file("q"), false); }), HasSubstr("chmod 700"));
  EXPECT_THROW(QueueFolder(dir.file("absent"), false), ConfigError);
}

TEST_F(QueueStoreTest, TheVersionShowsChangesOfOthersOnly) {
  QueueStore other(dir_.file("q.sqlite"), false);
  const int64_t before = store_.version();
  store_.submit(small_job(), 1);
  EXPECT_EQ(store_.version(), before);
  other.submit(small_job(), 1);
  EXPECT_NE(store_.version(), before);
  EXPECT_EQ(store_.all(false).size(), 2U);
}

// A client opens and reads the state while another process writes.
TEST_F(QueueStoreTest, ReadersDoNotWaitForAWriter) {
  Database writer(dir_.file("q.sqlite"), false);
  Transaction transaction(writer);
  QueueStore reader(dir_.file("q.sqlite"), false);
  EXPECT_TRUE(reader.all().empty());
}

TEST(QueueFolders, AreNotOnAFileSystemOfAnotherHost) {
  EXPECT_STREQ(remote_file_system(0x6969), "NFS");
  EXPECT_STREQ(remote_file_system(static_cast<int32_t>(0xFF534D42)), "SMB");
  EXPECT_STREQ(remote_file_system(0x65735546), "FUSE");
  EXPECT_STREQ(remote_file_system(0x0BD00BD0), "Lustre");
  EXPECT_EQ(remote_file_system(0xEF53), nullptr);  // ext4
}

TEST(ProcessNames, TellAProcessFromALaterOne) {
  const ProcessName own = own_process_name();
  EXPECT_TRUE(lives(own));
  EXPECT_FALSE(lives({own.pid, own.started + 1, own.boot}));
  EXPECT_FALSE(lives({own.pid, own.started, "another boot"}));
  EXPECT_FALSE(send_signal({own.pid, own.started + 1, own.boot}, SIGKILL));
  EXPECT_TRUE(send_signal(own, 0));
  int go[2], ready[2];
  ASSERT_EQ(::pipe(go) + ::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const uint64_t start = own_process_name().started;
    char byte = 0;
    if (::write(ready[1], &start, sizeof start) != sizeof start || ::read(go[0], &byte, 1) != 1) ::_exit(1);
    ::_exit(0);
  }
  uint64_t started = 0;
  ASSERT_EQ(::read(ready[0], &started, sizeof started), static_cast<ssize_t>(sizeof started));
  EXPECT_TRUE(lives({child, started, own.boot}));
  ASSERT_EQ(::write(go[1], "", 1), 1);
  for (const int fd : {go[0], go[1], ready[0], ready[1]}) ::close(fd);
  siginfo_t ended{};
  ::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT);  // it stays a zombie
  EXPECT_FALSE(lives({child, started, own.boot}));
  ::waitpid(child, nullptr, 0);
}

TEST(Claims, OnlyTheFirstProcessGetsAnAttempt) {
  const TempDir dir;
  const AttemptFiles files{dir.path().string(), 1};
  EXPECT_FALSE(claim_of(files));
  EXPECT_TRUE(void_claim(files));
  EXPECT_FALSE(void_claim(files));
  EXPECT_EQ(claim_of(files)->pid, 0);
  EXPECT_FALSE(end_of(files));
  write_bytes(files.end(), "{}");
  EXPECT_THROW(end_of(files), Error);
  write_bytes(files.end(), R"({"status": 3, "message": "m", "ended": 1.5, "told": true})");
  EXPECT_EQ(end_of(files)->status, 3);
}

}  // namespace
}  // namespace starling
