// Tests the launcher as a process: its messages, what remains after it, and how long it takes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "starling/launch/launch_options.h"

namespace {

using testing::HasSubstr;
using testing::Not;
using Seconds = std::chrono::duration<double>;

class Launcher : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "launcher_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    if (output_ >= 0) close(output_);
    std::filesystem::remove_all(dir_);
  }

  // Starts the launcher with its output and error in one pipe.
  void start(int ranks, const std::vector<std::string>& mode, int kill_after_ms = 0) {
    const std::string program =
        std::filesystem::read_symlink("/proc/self/exe").parent_path() / "launcher_child";
    std::vector<std::string> args{program, std::to_string(ranks), dir_};
    args.insert(args.end(), mode.begin(), mode.end());
    std::vector<char*> argv;
    for (std::string& a : args) argv.push_back(a.data());
    argv.push_back(nullptr);
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    begun_ = std::chrono::steady_clock::now();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      if (kill_after_ms > 0) setenv("KILL_AFTER_MS", std::to_string(kill_after_ms).c_str(), 1);
      execv(program.c_str(), argv.data());
      _exit(97);
    }
    close(ends[1]);
    output_ = ends[0];
  }

  // Reads output until `text` has appeared `times` times or the output ends. Returns false after 30 s.
  bool read_until(const std::string& text, int times = 1) {
    for (;;) {
      int count = 0;
      for (size_t at = 0; (at = text_.find(text, at)) != std::string::npos; ++at) ++count;
      if (count >= times) return true;
      pollfd fd{output_, POLLIN, 0};
      if (poll(&fd, 1, 30'000) <= 0) return false;
      char buffer[4096];
      const ssize_t n = read(output_, buffer, sizeof buffer);
      if (n <= 0) return false;
      text_.append(buffer, static_cast<size_t>(n));
    }
  }

  // Waits for the launcher and for every process that holds its pipe, such as rank 0.
  int finish() {
    EXPECT_FALSE(read_until("\1"));
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    elapsed_ = std::chrono::steady_clock::now() - begun_;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  // Waits for `text` in the rank's log, at most 30 s. Returns whether the text is there.
  bool log_has(int rank, const std::string& text) {
    const std::string path = dir_ + "/log/rank-" + std::to_string(rank) + ".log";
    for (int i = 0; i < 3000; ++i) {
      std::ifstream file(path);
      const std::string all(std::istreambuf_iterator<char>(file), {});
      if (all.find(text) != std::string::npos) return true;
      usleep(10'000);
    }
    return false;
  }

  // Returns the processes that have the test's folder in their command line: the launcher and its ranks. A
  // process that ends meanwhile has none.
  std::set<pid_t> family() {
    std::set<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::ifstream file(entry.path() / "cmdline", std::ios::binary);
      std::string all;
      std::getline(file, all, '\n');  // unlike an iterator, it throws nothing if the process ends meanwhile
      if (all.find(dir_) != std::string::npos) found.insert(static_cast<pid_t>(std::stoi(name)));
    }
    return found;
  }

  std::string dir_, text_;
  pid_t pid_ = -1;
  int output_ = -1;
  std::chrono::steady_clock::time_point begun_;
  Seconds elapsed_{};
};

TEST_F(Launcher, AllEndWell) {
  start(3, {"ok"});
  EXPECT_EQ(finish(), 0);
  EXPECT_THAT(text_, HasSubstr("rank 0 of 3, local 0 of 3\n"));
  EXPECT_THAT(text_, Not(HasSubstr("rank 1 of 3")));  // rank 1 prints to its log
  EXPECT_TRUE(log_has(1, "rank 1 of 3, local 1 of 3\n"));
  EXPECT_TRUE(log_has(2, "ended with exit status 0"));
  EXPECT_THAT(text_, Not(HasSubstr("error")));
}

TEST_F(Launcher, AKilledRankEndsTheOthersWithinFiveSecondsAndIsNamedOnce) {
  start(4, {"kill", "2"});
  EXPECT_EQ(finish(), 4);
  // The ranks ignore SIGTERM. The launcher must wait for the time in its options before it kills them, and
  // this time must be below 5 s.
  const starling::LaunchOptions options;
  EXPECT_LE(options.settle, options.term_after);
  EXPECT_LT(options.term_after, options.kill_after);
  EXPECT_LT(options.kill_after, std::chrono::seconds(5));
  EXPECT_GE(elapsed_, options.kill_after);
  EXPECT_LT(elapsed_.count(), 20);  // a loaded machine may take longer than the options say
  for (const int other : {0, 1, 3}) EXPECT_TRUE(log_has(other, "ended by signal 9")) << other;
  EXPECT_THAT(text_, HasSubstr("error: rank 2 was killed by signal 9 (SIGKILL) after step 812"));
  EXPECT_THAT(text_, HasSubstr("last lines of the rank:\n    | about to die\n"));
  EXPECT_THAT(text_, HasSubstr("3 other ranks are being ended"));
  EXPECT_THAT(text_, HasSubstr("logs: " + dir_ + "/log"));
  EXPECT_EQ(text_.find("error:"), text_.rfind("error:"));
  EXPECT_TRUE(family().empty());
}

TEST_F(Launcher, AStoppedRankThatTheOthersGaveUpIsEndedAndTheRunSucceeds) {
  start(3, {"stuck", "0"});
  EXPECT_EQ(finish(), 0);
  EXPECT_THAT(
      text_,
      HasSubstr("warning: rank 0 was ended by the launcher after step 7, because the other ranks gave it "
                "up: it did not answer within 3 ms. 2 ranks continue"));
  EXPECT_TRUE(log_has(0, "ended by the launcher: it did not answer within 3 ms"));
  EXPECT_TRUE(log_has(2, "rank 2 continues"));
  EXPECT_TRUE(family().empty());
}

TEST_F(Launcher, TheReasonOutranksComplaintsAboutIt) {
  start(4, {"blame", "3"});
  EXPECT_EQ(finish(), 3);
  EXPECT_THAT(text_, HasSubstr("error: rank 3: no such file: x.idx"));
  EXPECT_THAT(text_, HasSubstr("\n{\"event\":\"error\",\"time\":"));
  EXPECT_THAT(text_,
              HasSubstr(",\"code\":\"data\",\"message\":\"rank 3: no such file: x.idx\",\"rank\":3}\n"));
  EXPECT_THAT(text_, Not(HasSubstr("peer rank 3 died")));
  EXPECT_TRUE(log_has(0, "fatal: peer rank 3 died"));
}

TEST_F(Launcher, TheSameErrorOfAllRanksIsSaidOnce) {
  start(3, {"same"});
  EXPECT_EQ(finish(), 2);
  EXPECT_THAT(text_, HasSubstr("--lr: -1 is negative (2 other ranks said the same)"));
  EXPECT_EQ(text_.find("--lr"), text_.rfind("--lr"));
}

TEST_F(Launcher, RepeatedLinesAreFolded) {
  start(4, {"say"});
  EXPECT_EQ(finish(), 0);
  EXPECT_THAT(text_, HasSubstr("the disk is slow (2 other ranks said the same)\n"));
  EXPECT_EQ(text_.find("the disk"), text_.rfind("the disk"));
  EXPECT_TRUE(log_has(3, "the disk is slow\n"));
}

TEST_F(Launcher, SigtermIsPassedOnAndRanksEndCleanly) {
  start(2, {"wait"});
  ASSERT_TRUE(log_has(0, "ready") && log_has(1, "ready"));
  kill(pid_, SIGTERM);
  EXPECT_EQ(finish(), 0);
  EXPECT_THAT(text_, HasSubstr("SIGTERM: the ranks save their state and end"));
  EXPECT_TRUE(log_has(0, "saved by 0"));
  EXPECT_TRUE(log_has(1, "saved by 1"));
  EXPECT_THAT(text_, Not(HasSubstr("error")));
}

// The default action of SIGUSR1 would end a rank that is still starting.
TEST_F(Launcher, Sigusr1WaitsUntilARankTakesIt) {
  start(2, {"usr1"});
  ASSERT_TRUE(log_has(0, "ready") && log_has(1, "ready"));
  kill(pid_, SIGUSR1);
  usleep(300'000);                 // the ranks have time to die of it
  EXPECT_EQ(family().size(), 3u);  // the launcher and both ranks
  std::ofstream(dir_ + "/go") << std::flush;
  EXPECT_EQ(finish(), 0);
  EXPECT_TRUE(log_has(0, "saved by 0"));
  EXPECT_TRUE(log_has(1, "saved by 1"));
}

TEST_F(Launcher, TheSecondCtrlCEndsAtOnce) {
  start(2, {"stay"}, 60'000);
  ASSERT_TRUE(log_has(0, "ready") && log_has(1, "ready"));
  kill(pid_, SIGINT);
  ASSERT_TRUE(read_until("Ctrl-C: the ranks save their state and end. Repeat the signal to kill them"));
  kill(pid_, SIGINT);
  EXPECT_EQ(finish(), 130);
  EXPECT_THAT(text_, HasSubstr("Ctrl-C: killing the ranks"));
  EXPECT_TRUE(family().empty());
}

TEST_F(Launcher, ARankThatIgnoresSigtermIsKilled) {
  start(3, {"kill", "1"}, 400);
  EXPECT_EQ(finish(), 4);
  EXPECT_TRUE(log_has(0, "ended by signal 9"));
  EXPECT_TRUE(log_has(2, "ended by signal 9"));
}

TEST_F(Launcher, NoRankSurvivesALauncherKilledDead) {
  start(3, {"stay"});
  ASSERT_TRUE(log_has(0, "ready") && log_has(1, "ready") && log_has(2, "ready"));
  EXPECT_EQ(family().size(), 4u);
  kill(pid_, SIGKILL);
  EXPECT_EQ(finish(), 128 + SIGKILL);
  for (int i = 0; i < 3000 && !family().empty(); ++i) usleep(10'000);
  EXPECT_TRUE(family().empty());
}

// A daemon that is left has rank 0's output, so that finish() would wait for it.
TEST_F(Launcher, WhatRanksLeaveBehindInOtherSessionsEndsWithTheLauncher) {
  start(2, {"daemon"});
  EXPECT_EQ(finish(), 0);
  EXPECT_TRUE(family().empty());
}

TEST_F(Launcher, WhatAKilledRankLeavesBehindEndsWithTheLauncher) {
  start(2, {"daemon", "1"});
  EXPECT_EQ(finish(), 4);
  EXPECT_TRUE(family().empty());
}

TEST_F(Launcher, TheKeyIsInADescriptorOnly) {
  start(2, {"key"});
  EXPECT_EQ(finish(), 0);
  EXPECT_TRUE(log_has(1, "key ok"));
}

TEST_F(Launcher, RanksMeetInTheStoreThatTheLauncherServes) {
  start(3, {"meet"});
  EXPECT_EQ(finish(), 0);
  EXPECT_THAT(text_, HasSubstr("rank 1 says hello"));
  EXPECT_TRUE(log_has(2, "rank 0 says hello"));
}

TEST_F(Launcher, AFolderThatCannotBeMadeIsSaidBeforeAnythingStarts) {
  std::ofstream(dir_ + "/log") << "a file where the folder should be";
  start(2, {"ok"});
  EXPECT_EQ(finish(), 2);
  EXPECT_THAT(text_, HasSubstr("run.dir: cannot create " + dir_ + "/log"));
}

}  // namespace
