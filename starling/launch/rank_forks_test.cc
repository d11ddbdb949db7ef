#include "starling/launch/rank_forks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "starling/base/error.h"

namespace starling {
namespace {

// Starts a copy of this process as rank 12, which calls `work` and exits with its result.
RankProcess start(const std::function<int()>& work, const SpawnRequest& request = {}) {
  RankForks forks(1);
  if (forks.in_rank()) {
    const int status = work();
    std::fflush(nullptr);
    ::_exit(status);
  }
  return forks.begin(request, 12);
}

std::string read_all(const UniqueFd& fd) {
  std::string text;
  char part[4096];
  for (ssize_t n = 1; n != 0;) {
    pollfd ready{fd.get(), POLLIN, 0};
    ::poll(&ready, 1, -1);
    n = ::read(fd.get(), part, sizeof part);
    if (n > 0) text.append(part, static_cast<size_t>(n));
  }
  return text;
}

int status_of(const RankProcess& process) {
  int status = 0;
  ::waitpid(process.pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string name_of_process() {
  std::ifstream file("/proc/self/comm");
  std::string line;
  std::getline(file, line);
  return line;
}

TEST(RankForks, GetTheVariablesAndTheStreamsOfTheRequest) {
  SpawnRequest request;
  request.environment = {"ONE=1=1", "EMPTY="};
  const RankProcess rank = start(
      [] {
        std::printf("%s %s %d %s\n", std::getenv("ONE"), std::getenv("EMPTY"), std::getenv("HOME") != nullptr,
                    name_of_process().c_str());
        std::fprintf(stderr, "to err\n");
        return 7;
      },
      request);
  EXPECT_EQ(read_all(rank.out), "1=1  0 " + name_of_process().substr(0, 12) + ":12\n");
  EXPECT_EQ(read_all(rank.err), "to err\n");
  EXPECT_EQ(status_of(rank), 7);
}

TEST(RankForks, LargeEnvironmentsArrive) {
  SpawnRequest request;
  for (int i = 0; i < 100; ++i)
    request.environment.push_back(fmt::format("V{}={}", i, std::string(20'000, 'x')));
  request.environment.emplace_back("LAST=1");
  EXPECT_EQ(status_of(start([] { return std::getenv("LAST") != nullptr ? 0 : 1; }, request)), 0);
}

TEST(RankForks, DescriptorsArriveUnderTheirNumbers) {
  RankForks forks(2);  // the second copy never begins
  if (forks.in_rank()) {
    const int fd = std::atoi(std::getenv("FD"));
    const bool stays = (::fcntl(fd, F_GETFD) & FD_CLOEXEC) == 0;
    ::_exit(stays && ::write(fd, "x", 1) == 1 ? 0 : 1);
  }
  auto [read_end, write_end] = make_pipe();
  SpawnRequest request;
  request.inherit = {write_end.get()};
  request.environment = {fmt::format("FD={}", write_end.get())};
  const RankProcess rank = forks.begin(request, 0);
  write_end.reset();
  EXPECT_EQ(read_all(read_end), "x");  // ends, because no other copy holds the write end
  EXPECT_EQ(status_of(rank), 0);
  EXPECT_FALSE(forks.empty());
}

TEST(RankForks, IgnoredSignalsGetTheirDefaultActionAndHandledOnesKeepTheirs) {
  const auto one = ::signal(SIGUSR1, SIG_IGN), two = ::signal(SIGUSR2, [](int) { ::_exit(3); });
  const RankProcess ended = start([] { return ::raise(SIGUSR1); });
  const RankProcess handled = start([] { return ::raise(SIGUSR2); });
  ::signal(SIGUSR1, one);
  ::signal(SIGUSR2, two);
  EXPECT_EQ(status_of(ended), 128 + SIGUSR1);
  EXPECT_EQ(status_of(handled), 3);
}

TEST(RankForks, BufferedTextIsWrittenOnce) {
  std::FILE* file = std::tmpfile();
  std::fputs("once", file);
  EXPECT_EQ(status_of(start([] { return 0; })), 0);
  std::fflush(file);
  EXPECT_EQ(::lseek(::fileno(file), 0, SEEK_END), 4);
  std::fclose(file);
}

TEST(RankForks, CopiesThatDoNotBeginEndWithTheirOwner) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  std::optional<RankForks> forks(3);
  write_end.reset();
  forks.reset();
  EXPECT_EQ(read_all(read_end), "");  // the copies held the other end
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(RankForks, ACopyThatWasKilledIsAnErrorAndThereIsNoOther) {
  RankForks forks(1);
  if (forks.in_rank()) ::_exit(0);
  std::ifstream children(fmt::format("/proc/self/task/{}/children", ::getpid()));
  pid_t pid = 0;
  ASSERT_TRUE(children >> pid);
  ::kill(pid, SIGKILL);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);
  EXPECT_THROW(forks.begin({}, 0), Error);
  EXPECT_TRUE(forks.empty());
  EXPECT_THROW(forks.begin({}, 0), Error);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(RankForks, AreImpossibleBesideAnotherThread) {
  EXPECT_TRUE(RankForks::possible());
  std::atomic<bool> done = false;
  std::thread other([&done] { done.wait(false); });
  EXPECT_FALSE(RankForks::possible());
  done = true;
  done.notify_one();
  other.join();
#ifndef __SANITIZE_THREAD__  // which has a thread of its own after the first other one
  EXPECT_TRUE(RankForks::possible());
#endif
}

}  // namespace
}  // namespace starling
