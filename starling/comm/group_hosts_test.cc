// A group over two hosts (network namespaces): results, and that the bytes counted are the bytes on the wire.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "starling/base/error.h"
#include "starling/comm/bootstrap.h"
#include "starling/comm/tcp_mesh.h"
#include "starling/net/store_client.h"
#include "starling/net/store_server.h"
#include "starling/testing/network_namespaces.h"

namespace starling {
namespace {

constexpr const char* kStorePort = ":29511";

// Moves the calling process to a host.
void enter_host(const NetworkNamespaces& hosts, int host) {
  const std::string space = hosts.command(host, {"true"}).at(3);  // ip netns exec NAME true
  const int fd = open(("/var/run/netns/" + space).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) throw CommError("cannot enter the namespace " + space);
}

// Bytes that the host has sent: /proc/net/dev, ninth number of the line "eth0: …".
uint64_t sent_on_wire() {
  std::ifstream file("/proc/self/net/dev");
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find("eth0:");
    if (at == std::string::npos) continue;
    std::istringstream numbers(line.substr(at + 5));
    uint64_t value = 0;
    for (int i = 0; i < 9; ++i) numbers >> value;
    return value;
  }
  throw CommError("no eth0 here");
}

void run_host(const NetworkNamespaces& hosts, int host, const JobIdentity& identity) {
  enter_host(hosts, host);
  const std::string address = hosts.address(0) + kStorePort;
  std::unique_ptr<StoreServer> server;
  if (host == 0) server = std::make_unique<StoreServer>(std::vector<std::string>{address}, identity);
  StoreClient store(address, identity);
  GroupSetup setup;
  setup.rank = host;
  setup.size = 2;
  setup.host_id = setup.host_name = "host-" + std::to_string(host);
  setup.connect = tcp_mesh(hosts.address(host), identity);
  const auto group = make_group(store, setup);
  std::vector<float> data(8 << 20, static_cast<float>(host + 1));
  group->barrier();
  const uint64_t wire = sent_on_wire();
  const TrafficCount before = group->traffic();
  group->all_reduce(data.data(), data.size(), DataType::kFp32, ReduceOp::kSum);
  const double counted = static_cast<double>(group->traffic().socket_sent - before.socket_sent);
  group->barrier();
  const double seen = static_cast<double>(sent_on_wire() - wire);
  for (const float x : data) {
    if (x != 3.0f) throw CommError("the sum is wrong");
  }
  // All-reduce among two: N bytes each way.
  const double formula = 4.0 * static_cast<double>(data.size());
  if (std::fabs(counted / formula - 1) > 0.01)
    throw CommError("counted " + std::to_string(counted) + " bytes");
  if (std::fabs(seen / counted - 1) > 0.05)
    throw CommError("counted " + std::to_string(counted) + ", on the wire " + std::to_string(seen));
  group->barrier();
  // The store lives on host 0: it stays until host 1 has done with it.
  if (host == 0)
    store.get("done", Milliseconds(10'000));
  else
    store.put("done", "yes");
}

TEST(GroupHosts, CountedBytesAreTheBytesOnTheWire) {
  if (const auto reason = NetworkNamespaces::unavailable(); !reason.empty()) GTEST_SKIP() << reason;
  const NetworkNamespaces hosts(2);
  const JobIdentity identity{make_job_key(), "hosts"};
  std::vector<pid_t> pids;
  for (int host = 0; host < 2; ++host) {
    const pid_t pid = fork();
    if (pid == 0) {
      try {
        run_host(hosts, host, identity);
        _exit(0);
      } catch (const std::exception& error) {
        fprintf(stderr, "host %d: %s\n", host, error.what());
        _exit(1);
      }
    }
    pids.push_back(pid);
  }
  for (const pid_t pid : pids) {
    int status = -1;
    waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

}  // namespace
}  // namespace starling
