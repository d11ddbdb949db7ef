#include "starling/testing/network_namespaces.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

namespace starling {
namespace {

int run(const std::vector<std::string>& command) {
  std::string line;
  for (const auto& word : command) line += word + " ";
  return std::system((line + ">/dev/null 2>&1").c_str());
}

TEST(NetworkNamespaces, HostsReachEachOtherUntilUnpluggedAndAreRemoved) {
  if (const auto reason = NetworkNamespaces::unavailable(); !reason.empty()) GTEST_SKIP() << reason;
  std::vector<std::string> outlived;
  {
    NetworkNamespaces hosts(2);
    // bash connects to a port at which nobody listens. A host that is there refuses at once (status 1). An
    // unreachable host gives no answer (status 124 of timeout).
    const auto connect = [&](const char* seconds) {
      return run(hosts.command(
          0, {"timeout", seconds, "bash", "-c", "'echo >/dev/tcp/" + hosts.address(1) + "/9'"}));
    };
    EXPECT_EQ(WEXITSTATUS(connect("20")), 1);
    hosts.limit_rate(100);
    EXPECT_EQ(WEXITSTATUS(connect("20")), 1);
    hosts.unplug(1);
    EXPECT_EQ(WEXITSTATUS(connect("2")), 124);  // the kernel itself gives up after 3 s
    outlived = hosts.command(0, {"true"});
    EXPECT_EQ(run(outlived), 0);
  }
  EXPECT_NE(run(outlived), 0);
}

// Makes namespaces with a process inside that would stay, and dies of the signal. It is for a child of a
// test, where an exception would continue into the other tests.
[[noreturn]] void die_with_namespaces(int number) {
  try {
    const NetworkNamespaces hosts(1);
    const auto sleeper = hosts.command(0, {"sleep", "1000", ">/dev/null", "2>&1", "&"});
    (void)run(sleeper);
    // A process that enters after the keeper has looked would stay. sleeper[3] is the namespace.
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (run({"ip", "netns", "pids", sleeper[3], "| grep -q ."}) != 0) {
      if (std::chrono::steady_clock::now() > limit) ::_exit(1);
    }
    ::signal(number, SIG_DFL);  // a background job of a shell ignores SIGINT
    ::raise(number);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  ::_exit(1);
}

TEST(NetworkNamespaces, GoWithTheirProcessHoweverThatEnds) {
  if (const auto reason = NetworkNamespaces::unavailable(); !reason.empty()) GTEST_SKIP() << reason;
  for (const int number : {SIGKILL, SIGTERM, SIGINT}) {
    const pid_t maker = ::fork();
    ASSERT_GE(maker, 0);
    if (maker == 0) die_with_namespaces(number);
    int status = 0;
    ASSERT_EQ(::waitpid(maker, &status, 0), maker);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child has not lived to its signal: status "
                                     << WEXITSTATUS(status);
    ASSERT_EQ(WTERMSIG(status), number);
    const std::string named = "ip netns list | grep -q starling-" + std::to_string(maker) + "-";
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (std::system(named.c_str()) == 0) {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "namespaces are left";
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

}  // namespace
}  // namespace starling
