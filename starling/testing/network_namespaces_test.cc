#include "starling/testing/network_namespaces.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

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
    // bash connects to a port where nobody listens: refused at once (status 1) by a host that is there, while an
    // unreachable one gives no answer (timeout's status 124).
    const auto connect = [&] {
      return run(
          hosts.command(0, {"timeout", "2", "bash", "-c", "'echo >/dev/tcp/" + hosts.address(1) + "/9'"}));
    };
    EXPECT_EQ(WEXITSTATUS(connect()), 1);
    hosts.limit_rate(100);
    EXPECT_EQ(WEXITSTATUS(connect()), 1);
    hosts.unplug(1);
    EXPECT_EQ(WEXITSTATUS(connect()), 124);
    outlived = hosts.command(0, {"true"});
    EXPECT_EQ(run(outlived), 0);
  }
  EXPECT_NE(run(outlived), 0);
}

}  // namespace
}  // namespace starling
